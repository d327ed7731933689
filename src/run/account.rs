//! As whom this node runs commands, and as whom it does not.

use std::io;
use std::path::PathBuf;

use nix::unistd::User;

use crate::config::Policy;

/// What the environment tells of the user that commands run as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub home: String,
    pub shell: String,
    pub is_root: bool,
}

impl Account {
    /// Why this daemon does not run a job as `user`, if it does not.
    pub(super) fn refuses(&self, policy: &Policy, user: Option<&str>) -> Option<String> {
        let name = user.unwrap_or(&self.name);
        if !self.is_root && name != self.name {
            return Some(format!("this node runs as {} and cannot run commands as {name}", self.name));
        }
        if policy.users.as_ref().is_some_and(|users| !users.contains(name)) {
            return Some(format!("the settings of this node do not allow commands of {name} (allow_users)"));
        }
        if policy.root {
            return None;
        }
        // Another name may have root's number. Who is unknown cannot start anyway.
        let is_root = match User::from_name(name) {
            Ok(user) => user.is_some_and(|user| user.uid.is_root()),
            Err(error) => {
                return Some(format!("whether {name} is root cannot be found out: {}", error.desc()));
            }
        };
        is_root.then(|| "the settings of this node do not allow commands of root (allow_root)".to_owned())
    }

    /// The daemon's own user, from the user database.
    pub fn own() -> io::Result<Account> {
        let uid = nix::unistd::geteuid();
        let user = User::from_uid(uid)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no user has the id {uid}")))?;
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        Ok(Account { name: user.name, home: text(user.dir), shell: text(user.shell), is_root: uid.is_root() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_refuses_what_it_cannot_or_may_not_run() {
        let policy = |users: Option<&[&str]>, root| Policy {
            users: users.map(|users| users.iter().map(|user| user.to_string()).collect()),
            root,
        };
        let account = |name: &str| Account {
            name: name.to_owned(),
            home: "/".to_owned(),
            shell: "/bin/sh".to_owned(),
            is_root: name == "root",
        };
        for (own, policy, user, why) in [
            ("root", policy(None, true), None, None),
            ("root", policy(None, true), Some("nobody"), None),
            // The guard finds that out, and nothing starts.
            ("root", policy(None, false), Some("nosuch"), None),
            ("www", policy(None, true), Some("www"), None),
            (
                "www",
                policy(None, true),
                Some("root"),
                Some("this node runs as www and cannot run commands as root"),
            ),
            ("root", policy(Some(&["www"]), true), Some("www"), None),
            ("root", policy(Some(&["www"]), true), Some("nobody"), Some("allow_users")),
            ("root", policy(Some(&["www"]), true), None, Some("do not allow commands of root (allow_users)")),
            ("root", policy(Some(&[]), true), None, Some("allow_users")),
            ("root", policy(None, false), None, Some("allow_root")),
            ("root", policy(None, false), Some("root"), Some("allow_root")),
            ("root", policy(None, false), Some("nobody"), None),
        ] {
            let refused = account(own).refuses(&policy, user);
            let as_expected = match (&refused, why) {
                (Some(refused), Some(why)) => refused.contains(why),
                (refused, why) => refused.is_none() && why.is_none(),
            };
            assert!(as_expected, "{own} {policy:?} {user:?}: {refused:?}");
        }
    }
}
