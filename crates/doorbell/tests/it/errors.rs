//! Errors name the file, line, key or LBA and the expected value, set exit code 1, and lose no data.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{CommandOutput, Folder, doorbell, in_sim, output_of, plan};
use host::BlockDevice;
use media::Contents;
use media::contents::Spec;
use plan::{Plan, built_in};
use runtime::Log;
use wire::Lba;
use wire::nvme::status::Status;
use world::interfaces::NVME;

const GOOD: &str = "[a]\nrw=randread\nbs=4k\nsize=1m\nnumber_ios=10\n";

/// Asserts that the command fails with exactly this message after its name, and prints nothing else.
fn fails(folder: &Folder, arguments: &[&str], words: &str) {
    let CommandOutput { code, err, out } = output_of(&mut doorbell(folder, arguments));
    assert_eq!(err, format!("doorbell: {words}\n"), "{arguments:?}");
    assert_eq!((code, out.as_str()), (Some(1), ""), "{arguments:?}");
}

#[test]
fn clean_run_exits_zero_with_empty_stderr() {
    let folder = Folder::new("good");
    folder.file("good.fio", GOOD);
    let CommandOutput { code, err, out } = output_of(&mut doorbell(&folder, &["run", "good.fio"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains(", live and simulated, plan live, nvme"), "{out}");
}

#[test]
fn closed_stdout_pipe_ends_program_without_message() {
    let folder = Folder::new("pipe");
    let mut command = doorbell(&folder, &["keys"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
    assert_eq!(out.status.code(), Some(141));
}

#[test]
fn missing_input_is_named() {
    let folder = Folder::new("missing");
    folder.file("good.fio", GOOD);
    folder.file("gone.fio", "[a]\nread_iolog=gone.iolog\n");
    let no_file = "cannot be read: No such file or directory (os error 2)";
    fails(&folder, &["run", "none.fio"], &format!("none.fio: {no_file}"));
    fails(&folder, &["run", "gone.fio"], &format!("gone.iolog: {no_file}"));
    fails(
        &folder,
        &["run", "good.fio", "--plan", "none"],
        &format!(
            "none: found nothing, expected a file, or one of the built-in plans {}",
            built_in().iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
        ),
    );
    fails(
        &folder,
        &["run", "good.fio", "--world", "live", "--socket", "none.sock"],
        "none.sock: connecting: No such file or directory (os error 2)",
    );
    let hardware = ["hardware", "--qtest", "none.sock", "--memory"];
    let no_memory = "none.mem: opening: No such file or directory (os error 2)";
    fails(&folder, &[&hardware[..], &["none.mem"]].concat(), no_memory);
    let short = "good.fio: 44 bytes, expected more than 16777216";
    fails(&folder, &[&hardware[..], &["good.fio"]].concat(), short);
}

#[test]
fn job_error_names_file_line_and_key() {
    let folder = Folder::new("jobs");
    folder.file("bad.fio", "[a]\nrw=sideways\nbs=4k\n");
    folder.file("past.fio", "[a]\nrw=read\nbs=4k\noffset=2g\nsize=1m\n");
    folder.file("wide.fio", "[a]\nrw=read\nbs=1m\niodepth=1024\nnumjobs=2\nsize=1g\n");
    folder.file("deep.fio", "[a]\nrw=read\nbs=1m\niodepth=1024\nsize=1g\n");
    fails(
        &folder,
        &["run", "bad.fio"],
        "bad.fio:2: rw=sideways: \"sideways\" is not a direction; expected one of read, write, \
         randread, randwrite, rw, readwrite, randrw, trim, randtrim, trimwrite, randtrimwrite; in order also \
         with a distance, as in read:8k or read:-8k",
    );
    fails(
        &folder,
        &["run", "past.fio"],
        "past.fio: a: the region of clone 0 is 2147483648..2148532224: expected it to end within the \
         capacity of 1073741824 bytes",
    );
    // Insufficient host memory is one error, and the job is not run at another depth.
    let threads = ["--threads", "2"];
    for (file, world, more) in
        [("deep.fio", "live", &[][..]), ("deep.fio", "sim", &[]), ("wide.fio", "live", &threads)]
    {
        let deep =
            output_of(&mut doorbell(&folder, &[&["run", file, "--world", world], more].concat()));
        assert_eq!(
            (deep.code, deep.out.as_str(), deep.err.lines().count()),
            (Some(1), "", 1),
            "{}",
            deep.err
        );
        let words = format!("doorbell: {file}:1: a: found ");
        assert!(deep.err.starts_with(&words), "{}", deep.err);
        for key in
            [" of numjobs=", " iodepth=1024 ", " 1048576 bytes each (bs", ": host.memory has "]
        {
            assert!(deep.err.contains(key), "{key}: {}", deep.err);
        }
    }
}

#[test]
fn plan_error_names_file_line_column_and_key() {
    let folder = Folder::new("plans");
    folder.file("good.fio", GOOD);
    folder.file("bad.toml", "version = 1\nname = \"x\"\n[link\n");
    fails(
        &folder,
        &["run", "good.fio", "--plan", "bad.toml"],
        "bad.toml:3:6: found what is no TOML (unclosed table, expected `]`), expected a TOML document",
    );
    fails(
        &folder,
        &["run", "good.fio", "--plan", "gen4", "--set", "link.lanes=7"],
        "plans/gen4.toml, --set link.lanes=7: link.lanes: found 7, expected 1, 2, 4, 8, 16 or 32 lanes",
    );
    let many = output_of(&mut doorbell(&folder, &["check", "bad.toml", "gen4"]));
    assert_eq!(many.code, Some(1));
    assert!(many.err.starts_with("bad.toml:3:6: ") && many.out.starts_with("gen4 ("), "one good");
}

#[test]
fn recording_error_names_file_and_line() {
    let folder = Folder::new("traces");
    folder.file("bad.iolog", "fio version 2 iolog\nf add\nf open\nf read zero 4096\n");
    for world in ["live", "sim"] {
        fails(
            &folder,
            &["run", "bad.iolog", "--world", world],
            "bad.iolog:4: offset \"zero\": expected a whole number of bytes, with its length within \
             64 bits",
        );
    }
}

#[test]
fn image_of_wrong_size_or_in_use_is_rejected_unchanged() {
    let folder = Folder::new("images");
    folder.file("good.fio", GOOD);
    let set = |file: &str| format!("medium.file=\"{file}\"");
    let on = |file: &str| {
        let set = set(file);
        let capacity = "medium.capacity=\"1 MiB\"";
        let command =
            ["run", "good.fio", "--world", "live", "--set", capacity, "--set", set.as_str()];
        command.map(str::to_owned)
    };
    let try_it = |file: &str, words: &str| {
        let command = on(file);
        fails(&folder, &command.each_ref().map(String::as_str), words);
    };
    std::fs::write(folder.path("odd.img"), [7; 5000]).expect("a file");
    try_it(
        "odd.img",
        "odd.img: the file has 5000 bytes, expected 1048576 (an existing image is never resized)",
    );
    assert_eq!(std::fs::read(folder.path("odd.img")).expect("still there"), [7; 5000]);
    let file = set("busy.img").replace("busy.img", &folder.path("busy.img").display().to_string());
    let (key, value) = file.split_once('=').expect("a key and a value");
    let held = plan("live", &[("medium.capacity", "1 MiB"), (key, value)]);
    let contents = Contents::new(held.medium.contents.clone()).expect("a new image");
    try_it("busy.img", "busy.img: the image is in use, expected to be its only user");
    drop(contents);
    let command = on("busy.img");
    let freed = output_of(&mut doorbell(&folder, &command.each_ref().map(String::as_str)));
    assert_eq!(freed.code, Some(0), "{}", freed.err);
}

/// A file system of 4 MiB, or the reason why it is not available.
struct Small<'a>(&'a Path);

impl Small<'_> {
    fn mounted(at: &Path) -> Result<Small<'_>, String> {
        std::fs::create_dir_all(at).expect("a folder to mount on");
        let mut mount = Command::new("mount");
        let mounted =
            output_of(mount.args(["-t", "tmpfs", "-o", "size=4m", "doorbell-test"]).arg(at));
        if mounted.code == Some(0) { Ok(Small(at)) } else { Err(mounted.err) }
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// A plan whose medium is a sparse file of 16 MiB.
fn on_file(path: &Path) -> Plan {
    let file = format!("{:?}", path.display().to_string());
    let sets =
        [("medium.capacity", "16 MiB"), ("medium.block", "4 KiB"), ("medium.file", file.as_str())];
    plan("live", &sets)
}

/// The contents of a block: its number, repeated.
fn block(lba: u64) -> Vec<u8> {
    lba.to_le_bytes().repeat(4096 / 8)
}

/// Writes and flushes blocks until the file behind the medium is full: the error names the block, the
/// device continues, and flushed data are there, at once and after reopening.
fn fill(path: &Path) {
    let plan = on_file(path);
    let blocks_written = in_sim(NVME, &plan, Log::Off, async |_, driver, _| {
        let disk = driver.disk(0);
        let mut buffer = disk.buffer(4096).expect("host memory");
        let mut full = None;
        for lba in 0..disk.geometry().blocks {
            buffer.copy_in(0, &block(lba));
            let (back, result) = disk.write(Lba(lba), buffer, false).await;
            buffer = back;
            if let Err(error) = result {
                assert_eq!(error.status.map(Status::kind), Some(Status::CAPACITY_EXCEEDED));
                assert_eq!(error.lba, Some(Lba(lba)));
                let words = error.to_string();
                assert!(words.starts_with(&format!("LBA {lba}: ")), "{words}");
                assert!(words.contains("Capacity Exceeded"), "{words}");
                full = Some(lba);
                break;
            }
            disk.flush().await.expect("what could be written can be flushed");
        }
        let full = full.expect("16 MiB do not fit");
        for lba in (0..full).step_by(17) {
            let (back, result) = disk.read(Lba(lba), buffer).await;
            buffer = back;
            result.expect("a full device still reads");
            let mut found = vec![0; 4096];
            buffer.copy_out(0, &mut found);
            assert_eq!(found, block(lba), "LBA {lba}");
        }
        full
    });
    assert!(blocks_written > 100, "only {blocks_written} blocks fit");
    let contents: Spec = plan.medium.contents;
    let reopened = Contents::new(contents).expect("the image is whole");
    for lba in 0..blocks_written {
        let mut found = vec![0; 4096];
        reopened
            .runs(lba * 4096, 4096, &mut |at, run| {
                found[at as usize..at as usize + run.len()].copy_from_slice(run);
            })
            .expect("a block of the image");
        assert_eq!(found, block(lba), "LBA {lba} was flushed");
    }
}

/// The same from the command line: a verified job names the failed blocks and exits with 1.
fn overfill(folder: &Folder, command: &mut Command, image: &Path, world: &str) {
    folder.file("fill.fio", "[fill]\nrw=write\nbs=64k\nsize=16m\nfsync=4\nverify=crc32c\n");
    let file = format!("medium.file={:?}", image.display().to_string());
    let set = ["--set", "medium.capacity=\"16 MiB\"", "--set", &file];
    let command = command.current_dir(folder.at());
    let full =
        output_of(command.args(["run", "fill.fio", "--resets", "1", "--world", world]).args(set));
    assert_eq!(full.code, Some(1), "{}", full.err);
    let (repeat, lines): (Vec<_>, Vec<_>) =
        full.err.lines().partition(|line| line.starts_with("to repeat: "));
    if world == "sim" {
        let words = format!(
            "to repeat: doorbell replay fill.fio --plan live --seed 1 --resets 1 \
             --set 'medium.capacity=\"16 MiB\"' --set '{file}'"
        );
        assert_eq!(repeat, [words]);
    }
    let (last, failed) = lines.split_last().expect("an error message");
    assert!(last.starts_with("error: fill: ") && last.ends_with(" errors in all"), "{last}");
    for line in failed {
        assert!(line.starts_with("error: fill: write: LBA "), "{line}");
        assert!(line.contains("Capacity Exceeded"), "{line}");
    }
    assert!(full.out.contains(": verified "), "what was written is read back: {}", full.out);
}

#[test]
fn full_disk_error_names_lba_and_keeps_flushed_data() {
    let folder = Folder::new("full");
    let at = folder.path("small");
    let small = match Small::mounted(&at) {
        Ok(small) => small,
        Err(reason) => return println!("not run: a small file system needs root: {reason}"),
    };
    fill(&at.join("a.img"));
    std::fs::remove_file(at.join("a.img")).expect("room for the next");
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    overfill(&folder, &mut command, &at.join("b.img"), "live");
    drop(small);
}

/// A limit on the file size stands in for a full disk if the test is not run as root.
#[test]
fn file_size_limit_is_reported_as_full_disk() {
    let folder = Folder::new("limit");
    let image = folder.path("c.img");
    // The image exists at its full length, which the limit would not allow to create.
    drop(Contents::new(on_file(&image).medium.contents).expect("a new image"));
    let mut shell = Command::new("sh");
    let script = "trap '' XFSZ; ulimit -f 4096; exec \"$0\" \"$@\"";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_doorbell")]);
    // A live run is left out: its host memory is a file too, and would exceed the limit.
    overfill(&folder, &mut shell, &image, "sim");
}

#[test]
fn compare_fails_if_no_interface_supports_plan() {
    let folder = Folder::new("compare-none");
    folder.file("good.fio", GOOD);
    let fault = "faults=[{ name = \"x\", what = \"unreadable-die\", die = 99, at = \"1 us\" }]";
    let compare = ["compare", "good.fio", "--plan", "gen4", "--world", "sim", "--set", fault];
    let CommandOutput { code, err, .. } = output_of(&mut doorbell(&folder, &compare));
    assert_eq!(code, Some(1), "{err}");
    assert!(err.starts_with("doorbell: plans/gen4.toml: no interface fits it: "), "{err}");
    assert!(err.contains("faults.0.die: found 99"), "{err}");
}
