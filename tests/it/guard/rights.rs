//! A command has the rights of its user and no others, whatever the daemon was started with; and where they cannot be
//! given it does not start. The users are those of files that only the guard sees in place of the machine's.

use std::os::unix::fs::{PermissionsExt, chown};

use super::*;

/// Groups that root was started with, as by a login: they open other users' files.
const EXTRA: &str = "0,6,42";

/// Guards started with [`EXTRA`] groups, on a machine with the users `member` (who is in the group `backup`) and `plain`.
/// None without root, which is said.
fn with_users() -> Option<Runs> {
    if !super::terms::is_root() {
        return None;
    }
    let runs = Runs::started_by(&format!(
        "exec unshare --mount --propagation private sh -c '
            mount --bind \"$0.passwd\" /etc/passwd && mount --bind \"$0.group\" /etc/group &&
            exec setpriv --groups {EXTRA} \"$1\" \"$2\"' \"$0\" \"$GUARD\" \"$1\""
    ));
    // Its folder is the tests' own; the users below must get through it.
    fs::set_permissions(runs.path(""), PermissionsExt::from_mode(0o711)).unwrap();
    let passwd = "root:x:0:0:root:/root:/bin/sh\n\
                  member:x:4001:4001::/nonexistent:/bin/sh\n\
                  plain:x:4002:4002::/nonexistent:/bin/sh\n\
                  toor:x:0:0::/root:/bin/sh\n";
    let group =
        "root:x:0:\ndisk:x:6:\nshadow:x:42:\nbackup:x:34:other,member\nmember:x:4001:\nplain:x:4002:\n";
    fs::write(runs.path("guard.passwd"), passwd).unwrap();
    fs::write(runs.path("guard.group"), group).unwrap();
    for (name, group) in [("of-shadow", 42), ("of-backup", 34)] {
        fs::write(runs.path(name), name).unwrap();
        fs::set_permissions(runs.path(name), PermissionsExt::from_mode(0o640)).unwrap();
        chown(runs.path(name), Some(0), Some(group)).unwrap();
    }
    Some(runs)
}

#[tokio::test]
async fn a_users_groups_are_those_of_the_user_database_and_none_of_the_daemons() {
    let Some(runs) = with_users() else { return };
    let looks = format!(
        "id -u; id -g; id -G; cat {}; echo; cat {}; echo; true",
        runs.path("of-shadow").display(),
        runs.path("of-backup").display()
    );
    let denied = |name: &str| format!("cat: {}: Permission denied\n", runs.path(name).display());
    let (shadow, backup) = (denied("of-shadow"), denied("of-backup"));
    for (user, group, seen) in [
        (Some("member"), None, format!("4001\n4001\n4001 34\n{shadow}\nof-backup\n")),
        (Some("plain"), None, format!("4002\n4002\n4002\n{shadow}\n{backup}\n")),
        // A group of one's own choice comes in place of the user's own, and brings nothing else.
        (Some("plain"), Some("backup"), format!("4002\n34\n34\n{shadow}\nof-backup\n")),
        (Some("member"), Some("backup"), format!("4001\n34\n34\n{shadow}\nof-backup\n")),
        // Root by another name has what the user database says of that name.
        (Some("toor"), None, "0\n0\n0\nof-shadow\nof-backup\n".to_owned()),
        // Without a user it is the daemon's own, groups and all.
        (None, None, "0\n0\n0 6 42\nof-shadow\nof-backup\n".to_owned()),
    ] {
        let name = |name: Option<&str>| name.map(str::to_owned);
        let spec = Spec { user: name(user), group: name(group), ..shell(&looks) };
        let (run, ended) = runs.run(&spec).await;
        assert_eq!(ended.how, How::Exited, "{user:?} {ended:?}");
        assert_eq!(run.text(), seen, "{user:?} {group:?}");
    }
    // A user of the machine that these files do not have is unknown, and nobody else.
    let (_, ended) = runs.run(&Spec { user: Some("daemon".to_owned()), ..shell("id") }).await;
    assert_eq!((ended.how, ended.started_at), (How::CouldNotStart, None));
    assert_eq!(ended.reason.as_deref(), Some("user daemon: there is no such user"));
}

#[tokio::test]
async fn a_right_that_cannot_be_given_or_taken_keeps_the_command_from_starting() {
    if !super::terms::is_root() {
        return;
    }
    for (how, why) in [
        // Root that may not set groups: as in a container.
        ("exec unshare --user --map-root-user \"$GUARD\" \"$1\"", "setting the groups: "),
        (
            "exec setpriv --bounding-set=-setgid \"$GUARD\" \"$1\"",
            "setting the groups: operation not permitted",
        ),
        (
            "exec setpriv --bounding-set=-setuid \"$GUARD\" \"$1\"",
            "setting the user: operation not permitted",
        ),
    ] {
        let runs = Runs::started_by(how);
        let mark = runs.path("mark");
        fs::set_permissions(runs.path(""), PermissionsExt::from_mode(0o777)).unwrap();
        let touch = format!("id > {}", mark.display());
        let (_, ended) = runs.run(&Spec { user: Some("nobody".to_owned()), ..shell(&touch) }).await;
        assert_eq!((ended.how, ended.started_at), (How::CouldNotStart, None), "{how}");
        assert!(ended.reason.as_ref().unwrap().starts_with(why), "{how}: {ended:?}");
        assert!(!mark.exists(), "{how}");
    }
}
