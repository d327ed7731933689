//! The terms of a command, found out on the node that runs it: whose ids a name stands for, and what it is given to read.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{Gid, Group, Uid, User, getegid, geteuid, getgrouplist};

use super::env_file;
use super::folder::{Credential, Spec};
use crate::child::{Bounds, Identity, plain};
use crate::job::{IoNice, Limit};
use crate::output::Filter;

/// Puts the names of the command's user into its environment and fills in its home.
///
/// Users and groups are those of the machine's user database, whatever that is made of. None: the command keeps the ids
/// of this process.
///
/// Errors: which step failed. Nothing may be started then: an unknown user is nobody else.
pub fn identify(spec: &mut Spec) -> Result<Option<Identity>, String> {
    let Some(name) = spec.user.clone() else {
        return match &spec.group {
            None => Ok(None),
            Some(_) => {
                let own = User::from_uid(geteuid())
                    .map_err(|errno| format!("the user database: {}", said(errno)))?;
                identity(spec, &own.ok_or("the guard's own user is unknown")?).map(Some)
            }
        };
    };
    let user = User::from_name(&name)
        .map_err(|errno| format!("user {name}: {}", said(errno)))?
        .ok_or_else(|| format!("user {name}: there is no such user"))?;
    let home = user.dir.to_string_lossy().into_owned();
    for (variable, value) in [
        ("HOME", home.as_str()),
        ("LOGNAME", &user.name),
        ("USER", &user.name),
        ("SHELL", &user.shell.to_string_lossy()),
    ] {
        // The job's own word counts more.
        spec.env.entry(variable.to_owned()).or_insert_with(|| value.to_owned());
    }
    if spec.workdir.is_empty() {
        spec.workdir = if Path::new(&home).is_dir() { home } else { "/".to_owned() };
    }
    identity(spec, &user).map(Some)
}

fn identity(spec: &Spec, user: &User) -> Result<Identity, String> {
    let gid = match &spec.group {
        None => user.gid,
        Some(name) => {
            Group::from_name(name)
                .map_err(|errno| format!("group {name}: {}", said(errno)))?
                .ok_or_else(|| format!("group {name}: there is no such group"))?
                .gid
        }
    };
    let own = (geteuid(), getegid());
    if own == (user.uid, gid) && !own.0.is_root() {
        // Nothing to change, and no right to.
        return Ok(Identity { uid: user.uid.as_raw(), gid: gid.as_raw(), groups: None });
    }
    let name =
        std::ffi::CString::new(user.name.as_str()).map_err(|_| "a NUL in the user's name".to_owned())?;
    let groups =
        getgrouplist(&name, gid).map_err(|errno| format!("groups of {}: {}", user.name, said(errno)))?;
    Ok(Identity {
        uid: Uid::as_raw(user.uid),
        gid: gid.as_raw(),
        groups: Some(groups.into_iter().map(Gid::as_raw).collect()),
    })
}

/// Puts what the node's files say into the command's environment, in place of what the job says.
pub fn add_variables(spec: &mut Spec, reader: Option<&Identity>) -> Result<(), String> {
    if let Some(path) = &spec.env_file {
        let variables = env_file::read(Path::new(path), reader);
        spec.env.extend(variables.map_err(|why| format!("env_file {path}: {why}"))?);
    }
    if let Some(Credential { name, folder }) = &spec.credential {
        let folder = folder.as_ref().ok_or("env_from: this node was started without credentials")?;
        // Whoever gave it to the daemon gave it to its jobs.
        let variables = env_file::read(&folder.join(name), None);
        spec.env.extend(variables.map_err(|why| format!("env_from credentials:{name}: {why}"))?);
    }
    Ok(())
}

/// What is done to the output, if anything.
pub fn filter(spec: &Spec) -> Option<Filter> {
    let values =
        spec.redact.iter().filter_map(|name| spec.env.get(name)).map(|value| value.as_bytes().to_vec());
    Filter::new(values.collect(), spec.timestamps)
}

/// What binds the command besides.
pub fn bounds(spec: &Spec) -> Result<Bounds, String> {
    let ionice = spec.ionice.as_deref().map(str::parse::<IoNice>).transpose();
    let limits = spec.limits.iter().map(|(name, most)| Ok((name.parse::<Limit>()?, *most)));
    Ok(Bounds {
        umask: spec.umask,
        nice: spec.nice,
        ionice: ionice.map_err(|why| format!("ionice: {why}"))?,
        limits: limits.collect::<Result<_, String>>()?,
        no_new_privs: spec.no_new_privs,
    })
}

/// A file in memory with what the command is to read.
pub fn stdin(text: &str) -> Result<File, String> {
    let failed = |error: std::io::Error| format!("stdin: {}", plain(&error));
    let memory = memfd_create(c"stdin", MFdFlags::MFD_CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let mut file = File::from(memory);
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

fn said(errno: Errno) -> String {
    errno.desc().to_lowercase()
}
