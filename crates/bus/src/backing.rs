//! File system behind a file that a peer has sent: it bounds the time of a page fault in a mapping.

use std::format;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::string::{String, ToString};

use crate::fd;

/// Why a file is not mapped for doorbells. `file` is its path, as far as this process can resolve it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotLocal {
    #[error("{file} is no regular file")]
    NotRegular { file: String },
    /// Any user can mount an overlay over FUSE in a mount namespace of their own.
    #[error("{file} is on an overlayfs of another mount namespace")]
    ForeignOverlay { file: String },
    #[error(
        "{file} is on {}, where a fault may wait for another machine or process; expected tmpfs, hugetlbfs, \
         ramfs, ext2 to ext4, xfs, btrfs or overlayfs",
        kind_name(*.kind)
    )]
    FileSystem { file: String, kind: u32 },
    #[error("{file}: {error}")]
    System { file: String, error: io::Error },
}

const OVERLAYFS: u32 = 0x794c_7630;

/// File systems whose pages are memory: a page fault waits for no I/O.
const IN_MEMORY: &[u32] = &[0x0102_1994, 0x9584_58f6];

/// File systems on local disks. A fault may wait for a disk, but not for another process: mounting such a
/// file system on a device that a process serves takes root.
const ON_DISK: &[u32] = &[0x8584_58f6, 0xef53, 0x5846_5342, 0x9123_683e, OVERLAYFS];

/// Names for error messages (statfs(2)).
const NAMES: &[(u32, &str)] = &[
    (0x0102_1994, "tmpfs"),
    (0x9584_58f6, "hugetlbfs"),
    (0x8584_58f6, "ramfs"),
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (OVERLAYFS, "overlayfs"),
    (0x6573_5546, "FUSE"),
    (0x6969, "NFS"),
    (0x0102_1997, "9p"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "ZFS"),
    (0x9fa0, "proc"),
];

/// Returns true for a regular file whose pages are memory: tmpfs, memfd, huge pages. Any other file may be
/// served by a process (FUSE) or a network, which can stall an access to its mapping indefinitely.
pub(crate) fn is_memory(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(is_regular(fd)? && IN_MEMORY.contains(&fd::filesystem(fd)?))
}

/// Validates a file for a mapping with rare stores, a doorbell page: it may also lie on a local disk. A
/// store into a mapped page waits for the disk at most once per write-back of the page, some seconds apart.
///
/// # Errors
/// The file is not regular, or lies on another file system.
pub(crate) fn must_be_local(fd: BorrowedFd<'_>) -> Result<(), NotLocal> {
    let system = |error| NotLocal::System { file: name(fd), error };
    if !is_regular(fd).map_err(system)? {
        return Err(NotLocal::NotRegular { file: name(fd) });
    }
    let kind = fd::filesystem(fd).map_err(system)?;
    if kind == OVERLAYFS && !is_mounted_here(fd).map_err(system)? {
        return Err(NotLocal::ForeignOverlay { file: name(fd) });
    }
    if IN_MEMORY.contains(&kind) || ON_DISK.contains(&kind) {
        return Ok(());
    }
    Err(NotLocal::FileSystem { file: name(fd), kind })
}

fn is_regular(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(File::from(fd.try_clone_to_owned()?).metadata()?.is_file())
}

/// Path of the file, as far as this process can resolve it.
pub(crate) fn name(fd: BorrowedFd<'_>) -> String {
    let number = fd.as_raw_fd();
    match fs::read_link(format!("/proc/self/fd/{number}")) {
        Ok(path) => path.display().to_string(),
        Err(_) => format!("descriptor {number}"),
    }
}

fn kind_name(kind: u32) -> String {
    match NAMES.iter().find(|(known, _)| *known == kind) {
        Some((_, name)) => (*name).into(),
        None => format!("a file system of type {kind:#x}"),
    }
}

/// Returns true if the file was opened through a mount of this process's mount namespace: mount IDs are
/// unique across namespaces.
fn is_mounted_here(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
    let Some(mount) = about.lines().find_map(|line| line.strip_prefix("mnt_id:")) else {
        return Ok(false);
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mounts.lines().any(|line| line.split(' ').next() == Some(mount.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn doorbell_page_accepts_tmpfs_and_local_disk() {
        let folder = std::env::temp_dir();
        for folder in [folder.as_path(), std::path::Path::new("/dev/shm")] {
            let path = folder.join(format!("doorbell-backing-{}", std::process::id()));
            let file = File::options().create_new(true).read(true).write(true).open(&path);
            let file = file.expect("a new file");
            fs::remove_file(&path).expect("it was just made");
            must_be_local(file.as_fd()).unwrap_or_else(|why| panic!("{why}"));
            assert!(is_mounted_here(file.as_fd()).expect("proc"), "{}", path.display());
        }
    }

    #[test]
    fn doorbell_page_error_names_file_and_file_system() {
        let file = File::open("/proc/self/status").expect("proc");
        let why =
            must_be_local(file.as_fd()).expect_err("a file of proc is not mapped").to_string();
        assert!(why.contains("/status is on proc, ") && why.contains("expected tmpfs"), "{why}");
        assert!(!is_memory(file.as_fd()).expect("a file"));
    }

    #[test]
    fn doorbell_page_rejects_device_node_on_tmpfs() {
        let file = File::open("/dev/zero").expect("a device");
        let why = must_be_local(file.as_fd()).expect_err("its driver decides what a fault does");
        assert_eq!(why.to_string(), "/dev/zero is no regular file");
        assert!(!is_memory(file.as_fd()).expect("a file"));
    }

    #[test]
    fn remote_file_systems_are_not_local() {
        for (kind, name) in NAMES {
            let local = IN_MEMORY.contains(kind) || ON_DISK.contains(kind);
            let expected =
                ["tmpfs", "hugetlbfs", "ramfs", "ext4", "xfs", "btrfs", "overlayfs"].contains(name);
            assert_eq!(local, expected, "{name}");
        }
    }
}
