//! Images on real file systems: persistence, exclusive use, error handling.

// A separate program, because it starts processes: until they call exec, those hold every lock of this one,
// and a concurrent test could find its image in use.
#[path = "it/common/mod.rs"]
mod common;

use common::Scratch;
use media::contents::{Backing, Contents, Error, Keep, Spec};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

const CAPACITY: u64 = 8 << 20;

fn open(path: &Path) -> Result<Contents, Error> {
    open_sized(path, CAPACITY)
}

fn open_sized(path: &Path, capacity_bytes: u64) -> Result<Contents, Error> {
    Contents::new(Spec {
        capacity_bytes,
        block_bytes: 4096,
        keep: Keep::Everything,
        backing: Backing::File(path.to_path_buf()),
    })
}

fn read(contents: &Contents, offset: u64, bytes: usize) -> Vec<u8> {
    let mut seen = vec![0xee; bytes];
    contents.read_into(offset, &mut seen).unwrap();
    seen
}

#[test]
fn new_image_is_sparse_with_device_capacity() {
    let scratch = Scratch::new("new");
    let path = scratch.join("disk.img");
    let mut contents = open(&path).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!(found.len(), CAPACITY);
    assert!(found.blocks() * 512 <= 4096, "nothing but perhaps a page of bookkeeping");
    contents.write(8192, &[7; 4096]).unwrap();
    contents.flush().unwrap();
    drop(contents);
    let raw = fs::read(&path).unwrap();
    assert_eq!(raw[..8192], [0; 8192]);
    assert_eq!(raw[8192..12288], [7; 4096]);
    assert!(raw[12288..].iter().all(|byte| *byte == 0));
}

#[test]
fn image_discard_after_write_across_region_boundary() {
    // The image tracks in regions of 64 MiB which may hold data.
    const REGION: u64 = 64 << 20;
    let scratch = Scratch::new("regions");
    let mut contents = open_sized(&scratch.join("disk.img"), 2 * REGION).unwrap();
    contents.write(REGION - 4096, &[6; 8192]).unwrap();
    contents.discard(REGION, REGION).unwrap();
    assert_eq!(read(&contents, REGION - 4096, 8192), [[6; 4096], [0; 4096]].concat());
}

#[test]
fn empty_file_opens_as_new_image() {
    let scratch = Scratch::new("empty");
    let path = scratch.join("disk.img");
    fs::write(&path, []).unwrap();
    assert_eq!(read(&open(&path).unwrap(), CAPACITY - 4096, 4096), [0; 4096]);
}

#[test]
fn image_open_rejects_file_of_wrong_size() {
    let scratch = Scratch::new("size");
    let path = scratch.join("letter.txt");
    for bytes in [100, CAPACITY as usize - 1, CAPACITY as usize + 4096] {
        let precious = vec![b'x'; bytes];
        fs::write(&path, &precious).unwrap();
        let error = open(&path).unwrap_err();
        assert!(
            matches!(&error, Error::WrongSize { found_bytes, expected_bytes: CAPACITY, path: named }
                if *found_bytes == bytes as u64 && *named == path),
            "{error}"
        );
        assert!(fs::read(&path).unwrap() == precious);
    }
}

#[test]
fn image_open_rejects_non_regular_file() {
    let scratch = Scratch::new("regular");
    for path in [&scratch.0, Path::new("/dev/full")] {
        let error = open(path).unwrap_err();
        assert!(matches!(error, Error::NotRegular { .. }), "{error}");
        assert_eq!(
            error.to_string(),
            format!("{}: expected a regular file or nothing", path.display())
        );
    }
    let error = open(&scratch.join("no/such/directory")).unwrap_err();
    assert!(matches!(error, Error::Prepare { attempt: "open the image", .. }), "{error}");
}

#[test]
fn image_truncated_while_open_is_error_not_sigbus() {
    let scratch = Scratch::new("cut");
    let path = scratch.join("disk.img");
    let contents = open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let error = contents.read_into(0, &mut [0; 8192]).unwrap_err();
    assert!(matches!(error, Error::Read { offset_bytes: 4096, bytes: 4096, .. }), "{error}");
}

#[test]
fn image_open_is_exclusive_across_processes() {
    if let Some(path) = std::env::var_os(IMAGE) {
        let error = open(Path::new(&path)).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }), "{error}");
        return;
    }
    let scratch = Scratch::new("lock");
    let path = scratch.join("disk.img");
    let mut first = open(&path).unwrap();
    first.write(0, &[1; 4096]).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(&error, Error::InUse { path: named } if *named == path), "{error}");
    let other = in_another_process("image_open_is_exclusive_across_processes", &path);
    let said = String::from_utf8_lossy(&other.stdout);
    assert!(other.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(read(&first, 0, 4096), [1; 4096]);
    drop(first);
    open(&path).expect("free again");
}

#[test]
fn flushed_image_data_survive_process_abort() {
    if let Some(path) = std::env::var_os(IMAGE) {
        let mut contents = open(Path::new(&path)).unwrap();
        contents.write(4096, &[0xa5; 4096]).unwrap();
        contents.write_stamp(CAPACITY / 4096 - 1, *b"the last").unwrap();
        contents.flush().unwrap();
        std::process::abort();
    }
    let scratch = Scratch::new("outlive");
    let path = scratch.join("disk.img");
    let other = in_another_process("flushed_image_data_survive_process_abort", &path);
    assert_eq!(other.status.code(), None, "it was to die of a signal");
    let contents = open(&path).expect("the lock died with the process");
    assert_eq!(read(&contents, 4096, 4096), [0xa5; 4096]);
    assert_eq!(contents.read_stamp(CAPACITY / 4096 - 1).unwrap(), *b"the last");
}

/// Environment variable with the image's path, for a test that runs in a child process.
const IMAGE: &str = "DOORBELL_MEDIA_TEST_IMAGE";

/// Runs this test in a child process, with an image.
fn in_another_process(test: &str, image: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", test])
        .env(IMAGE, image)
        .output()
        .expect("this program starts again")
}

/// A tmpfs of 1 MiB, unmounted on drop.
struct Tiny(Scratch);

impl Tiny {
    fn mount() -> Result<Tiny, String> {
        let scratch = Scratch::new("tmpfs");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "doorbell-test"]).arg(&scratch.0);
        match mount.output() {
            Ok(output) if output.status.success() => Ok(Tiny(scratch)),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
            Err(error) => Err(format!("mount: {error}")),
        }
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0.0).output();
    }
}

#[test]
fn image_write_on_full_tmpfs_fails_without_data_loss() {
    let tiny = match Tiny::mount() {
        Ok(tiny) => tiny,
        Err(why) => {
            eprintln!("skipped: this test needs leave to mount a tmpfs of 1 MiB: {why}");
            return;
        }
    };
    let path = tiny.0.join("disk.img");
    let mut contents = open(&path).expect("8 MiB, sparse, fit into 1 MiB");
    let mut written = 0;
    let error = loop {
        match contents.write(written, &[(written / 4096) as u8 | 1; 4096]) {
            Ok(()) => written += 4096,
            Err(error) => break error,
        }
        contents.flush().unwrap();
        assert!(written < CAPACITY, "the tmpfs never filled up");
    };
    assert!(
        matches!(&error, Error::Write { path: named, offset_bytes, bytes: 4096, source }
            if *named == path && *offset_bytes == written
                && source.kind() == std::io::ErrorKind::StorageFull),
        "{error}"
    );
    assert!((512 << 10..=1 << 20).contains(&written), "{written} bytes fitted");
    contents.write(0, &[0xaa; 4096]).expect("what has its blocks can be overwritten");
    contents.flush().expect("a full file system is not a failed flush");
    contents.discard(8192, CAPACITY - 8192).expect("discarding takes no new blocks");
    drop(contents);
    let contents = open(&path).unwrap();
    assert_eq!(read(&contents, 0, 4096), [0xaa; 4096]);
    assert_eq!(read(&contents, 4096, 4096), [1; 4096]);
    assert_eq!(read(&contents, 8192, 4096), [0; 4096]);
    drop(contents);
}

#[test]
fn label_is_stored_next_to_image_and_replaced_atomically() {
    let scratch = Scratch::new("label");
    let path = scratch.join("disk.img");
    let mut contents = open(&path).unwrap();
    assert_eq!(contents.label(), b"");
    contents.set_label(b"a first one, which is longer").unwrap();
    contents.set_label(b"a second").unwrap();
    assert_eq!(contents.label(), b"a second");
    drop(contents);
    let raw = fs::read(&path).unwrap();
    assert!(raw.iter().all(|byte| *byte == 0), "the image has the blocks and nothing else");
    assert_eq!(open(&path).unwrap().label(), b"a second");
    // A label belongs to one image, not to a new one of the same name.
    fs::remove_file(&path).unwrap();
    assert_eq!(open(&path).unwrap().label(), b"");
    assert!(!scratch.join("disk.img.label").exists());
}

#[test]
fn invalid_label_file_error_names_path() {
    let scratch = Scratch::new("no-label");
    let path = scratch.join("disk.img");
    drop(open(&path).unwrap());
    fs::write(scratch.join("disk.img.label"), [7; 13_000]).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("disk.img.label") && error.contains("more than 12288 bytes"), "{error}");
    fs::remove_file(scratch.join("disk.img.label")).unwrap();
    fs::create_dir(scratch.join("disk.img.label")).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("disk.img.label"), "{error}");
}
