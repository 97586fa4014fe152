//! Life of a drive: its number, from which its names follow, and counts that outlast controller and process.
//!
//! A drive with a file (an image, or a state of flash) keeps them beside it, in a text file with the suffix
//! `.drive`. Each save replaces that file by rename. It is saved when power comes and goes, when a shutdown
//! notification is complete, when the first command queue after one is enabled, and by its owner from time to
//! time: never on the path of a command. A process that is killed loses the counts since the last save, and
//! no other: nothing that was saved goes back.
//!
//! A file copied without it is another drive, and gets another number; copied together they are the same one.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use media::files::{Files, unused_name};
use runtime::{Span, Time};

use crate::counters::Counters;

/// Links that are followed to a drive's file: as many as Linux follows.
const LINKS_MAX: usize = 40;

/// The first line of the file.
const HEAD: &str = "doorbell drive 1";
/// The name in its last line, of the CRC-32C of all lines before.
const CHECKSUM: &str = "crc32c";

macro_rules! counts {
    ($($name:ident: $what:literal;)*) => {
        /// Counts over the life of a drive.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $(#[doc = $what] pub $name: u64,)*
        }

        impl Counts {
            const NAMES: &[&str] = &[$(stringify!($name)),*];

            fn each(&mut self) -> impl Iterator<Item = &mut u64> {
                [$(&mut self.$name),*].into_iter()
            }
        }
    };
}

counts! {
    power_cycles: "Times that power came.";
    unsafe_shutdowns: "Losses of power without a shutdown notification before.";
    power_on_s: "Seconds with power.";
    reads: "Read commands: reads, compares and verifies.";
    writes: "Write commands.";
    bytes_read: "Bytes that these read.";
    bytes_written: "Bytes that these wrote.";
    media_errors: "Failures of the medium.";
    errors: "Entries of the error log.";
}

/// The life of a drive. Every controller of the drive has a reference; it may be saved by any thread.
#[derive(Debug)]
pub struct Life {
    number: u64,
    file: Option<PathBuf>,
    /// The drive's own file did not exist: what is beside it is of an earlier one.
    is_new: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Counts without those of `counters`.
    before: Counts,
    counters: Vec<(Arc<Counters>, u32)>,
    /// Since when it has power; none: it has none.
    since: Option<Time>,
    /// Controllers that were enabled and not shut down since: a bit for each.
    enabled: u8,
    /// Shut down at least once since power came.
    is_notified: bool,
    /// Contents of the file; empty before power comes.
    saved: String,
}

impl State {
    /// A loss of power now would be an unsafe shutdown.
    fn is_in_use(&self) -> bool {
        self.since.is_some() && (self.enabled != 0 || !self.is_notified)
    }

    fn counts(&self, now: Time) -> Counts {
        let mut sum = self.before;
        let on = self.since.map_or(Span::ZERO, |since| Span(now.0.saturating_sub(since.0)));
        sum.power_on_s += on.0 / Span::s(1).0;
        for (counters, block_bytes) in &self.counters {
            add(&mut sum, counters, *block_bytes);
        }
        sum
    }
}

fn add(sum: &mut Counts, of: &Counters, block_bytes: u32) {
    sum.reads += of.reads.get();
    sum.writes += of.writes.get();
    sum.bytes_read += of.blocks_read.get().saturating_mul(block_bytes.into());
    sum.bytes_written += of.blocks_written.get().saturating_mul(block_bytes.into());
    sum.media_errors += of.media_errors.get();
    sum.errors += of.errors.get();
}

impl Default for Life {
    /// Of a drive without a file that has power for the first time, since time zero.
    fn default() -> Life {
        let life = Life::of(0);
        life.state().since = Some(Time::ZERO);
        life.state().before.power_cycles = 1;
        life
    }
}

/// Checks the file beside that of a drive, as a start does. None is as good as one that is whole.
///
/// # Errors
/// It can't be read, or is none of this kind.
pub fn check(medium: &Path) -> io::Result<()> {
    read(&beside(medium)).map(drop)
}

/// Renames a file that [`check`] rejects, to the name returned. The drive gets a new number when it starts.
///
/// # Errors
/// It can't be renamed.
pub fn put_away(medium: &Path) -> io::Result<PathBuf> {
    let file = beside(medium);
    let kept = unused_name(&file, ".damaged");
    std::fs::rename(&file, &kept).map_err(|error| named(&kept, error))?;
    Ok(kept)
}

/// The name of the file beside that of a drive.
pub fn beside(medium: &Path) -> PathBuf {
    // Beside the file that a link leads to, also before that file exists: it is one drive by every name.
    let mut own = medium.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = std::fs::read_link(&own) else { break };
        own = own.with_file_name("").join(target);
    }
    own.with_added_extension("drive")
}

impl Life {
    /// Of a drive without a file, with this number. It has no power yet.
    pub fn of(number: u64) -> Life {
        let state = State {
            before: Counts::default(),
            counters: Vec::new(),
            since: None,
            enabled: 0,
            is_notified: false,
            saved: String::new(),
        };
        Life { number, file: None, is_new: true, state: Mutex::new(state) }
    }

    /// Of the drive with this file: as kept beside it; of a new one, or one without, with the number `fresh`.
    /// Nothing is written. It has no power yet.
    ///
    /// # Errors
    /// The file beside it can't be read, or is none of this kind.
    pub fn at(medium: &Path, fresh: u64) -> io::Result<Life> {
        let file = beside(medium);
        let is_new = std::fs::metadata(medium).map_or(true, |found| found.len() == 0);
        let kept = if is_new { None } else { read(&file)? };
        let life = Life::of(kept.map_or(fresh, |kept| kept.number));
        Ok(Life { file: Some(file), is_new, ..life })
    }

    /// Writes the life of a new drive with this file, in place of any that is there.
    ///
    /// # Errors
    /// It can't be written.
    pub fn found(medium: &Path, number: u64) -> io::Result<()> {
        let kept = Kept { number, counts: Counts::default(), is_in_use: false };
        let file = beside(medium);
        Files::default().replace(&file, kept.text().as_bytes()).map_err(|error| named(&file, error))
    }

    /// The number of the drive among those of its kind.
    pub fn number(&self) -> u64 {
        self.number
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts until now.
    pub fn counts(&self, now: Time) -> Counts {
        self.state().counts(now)
    }

    /// Power comes, unless it is there. The drive's file is locked, so that no other process uses this one:
    /// it is read again, and counts a loss of power that nothing has recorded.
    ///
    /// # Errors
    /// It can't be read or written.
    pub fn power_on(&self, now: Time) -> io::Result<()> {
        let mut state = self.state();
        if state.since.is_some() {
            return Ok(());
        }
        if let Some(file) = self.file.as_ref().filter(|_| state.saved.is_empty()) {
            let kept = if self.is_new { None } else { read(file)? };
            if let Some(kept) = kept {
                if kept.number != self.number {
                    let text = "another process has given the drive a number meanwhile";
                    return Err(io::Error::other(text));
                }
                state.before = kept.counts;
                state.before.unsafe_shutdowns += u64::from(kept.is_in_use);
            }
        }
        state.before.power_cycles += 1;
        (state.since, state.enabled, state.is_notified) = (Some(now), 0, false);
        self.write(&mut state, now)
    }

    /// Power goes, unless it is gone. After an end in order, where the drive has made all data durable by
    /// itself, that counts as safe.
    ///
    /// # Errors
    /// It can't be written.
    pub fn power_off(&self, now: Time, in_order: bool) -> io::Result<()> {
        let mut state = self.state();
        if state.since.is_none() {
            return Ok(());
        }
        state.before.unsafe_shutdowns += u64::from(!in_order && state.is_in_use());
        state.before.power_on_s = {
            let all = state.counts(now);
            all.power_on_s
        };
        state.since = None;
        self.write(&mut state, now)
    }

    /// A controller is enabled: a loss of power is unsafe from here on.
    pub(crate) fn enabled(&self, bit: u8, now: Time) -> io::Result<()> {
        let mut state = self.state();
        let before = state.is_in_use();
        state.enabled |= bit;
        if before { Ok(()) } else { self.write(&mut state, now) }
    }

    /// A controller has completed a shutdown.
    pub(crate) fn shut_down(&self, bit: u8, now: Time) -> io::Result<()> {
        let mut state = self.state();
        state.enabled &= !bit;
        state.is_notified = true;
        self.write(&mut state, now)
    }

    /// Counts these too, of a controller over blocks of this length.
    pub(crate) fn add(&self, counters: Arc<Counters>, block_bytes: u32) {
        let mut state = self.state();
        let State { before, counters: all, .. } = &mut *state;
        // Those that no controller has any more change no more.
        all.retain(|(counters, block_bytes)| {
            let is_used = Arc::strong_count(counters) > 1;
            if !is_used {
                add(before, counters, *block_bytes);
            }
            is_used
        });
        all.push((counters, block_bytes));
    }

    /// Saves what has changed.
    ///
    /// # Errors
    /// It can't be written. The next call tries again.
    pub fn save(&self, now: Time) -> io::Result<()> {
        let mut state = self.state();
        // Before the power comes another process may have the file.
        if state.saved.is_empty() { Ok(()) } else { self.write(&mut state, now) }
    }

    fn write(&self, state: &mut State, now: Time) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let (counts, is_in_use) = (state.counts(now), state.is_in_use());
        let text = Kept { number: self.number, counts, is_in_use }.text();
        if text != state.saved {
            Files::default().replace(file, text.as_bytes()).map_err(|error| named(file, error))?;
            state.saved = text;
        }
        Ok(())
    }
}

/// A file that was read, or is to be written.
struct Kept {
    number: u64,
    counts: Counts,
    /// It had power, and no shutdown notification: unless the process still runs, power was lost.
    is_in_use: bool,
}

impl Kept {
    fn text(&self) -> String {
        let mut counts = self.counts;
        let mut text = format!("{HEAD}\nnumber {}\n", self.number);
        for (name, count) in Counts::NAMES.iter().zip(counts.each()) {
            let _ = writeln!(text, "{name} {count}");
        }
        let _ = writeln!(text, "in_use {}", u64::from(self.is_in_use));
        let checksum = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "{CHECKSUM} {checksum}");
        text
    }

    fn parse(text: &str) -> Result<Kept, String> {
        let mut lines: Lines<'_> = (1..).zip(text.lines());
        let mut kept = Kept { number: 0, counts: Counts::default(), is_in_use: false };
        exactly(&mut lines, HEAD)?;
        kept.number = count_of(&mut lines, "number")?;
        for (name, count) in Counts::NAMES.iter().zip(kept.counts.each()) {
            *count = count_of(&mut lines, name)?;
        }
        kept.is_in_use = count_of(&mut lines, "in_use")? != 0;
        let checksum = count_of(&mut lines, CHECKSUM)?;
        // The text that these values give has the right checksum.
        if kept.text() == text {
            return Ok(kept);
        }
        Err(format!("checksum {checksum} is wrong"))
    }
}

/// Lines with their numbers, from 1.
type Lines<'a> = std::iter::Zip<std::ops::RangeFrom<u32>, std::str::Lines<'a>>;

fn exactly(lines: &mut Lines<'_>, expected: &str) -> Result<(), String> {
    match lines.next() {
        Some((_, found)) if found == expected => Ok(()),
        Some((at, found)) => Err(format!("line {at}: found {found:?}, expected {expected:?}")),
        None => Err(format!("found its end, expected {expected:?}")),
    }
}

fn count_of(lines: &mut Lines<'_>, name: &str) -> Result<u64, String> {
    let expected = format!("{name} and a whole number");
    let (at, found) = lines.next().ok_or_else(|| format!("found its end, expected {expected}"))?;
    let count = found.strip_prefix(name).and_then(|rest| rest.strip_prefix(' '));
    let count = count.and_then(|count| count.parse().ok());
    count.ok_or_else(|| format!("line {at}: found {found:?}, expected {expected}"))
}

fn named(file: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

fn read(file: &Path) -> io::Result<Option<Kept>> {
    let bytes = Files::default().read(file).map_err(|error| named(file, error))?;
    let Some(bytes) = bytes else { return Ok(None) };
    let kept = Kept::parse(&String::from_utf8_lossy(&bytes)).map_err(io::Error::other);
    kept.map(Some).map_err(|error| named(file, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Time {
        Time::ZERO + Span::s(s)
    }

    /// A drive's file in a folder of its own, removed at the end.
    struct Medium(PathBuf);

    impl Medium {
        fn new(name: &str) -> Medium {
            let name = format!("doorbell-life-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir(&folder).expect("a folder");
            let medium = Medium(folder.join("drive.img"));
            std::fs::write(&medium.0, [1; 512]).expect("a file");
            medium
        }

        /// As a process that starts.
        fn life(&self, fresh: u64, s: u64) -> Life {
            let life = Life::at(&self.0, fresh).expect("a life");
            life.power_on(at(s)).expect("power");
            life
        }
    }

    impl Drop for Medium {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(self.0.parent().expect("its folder"));
        }
    }

    #[test]
    fn number_and_counts_survive_ends_of_every_kind() {
        let medium = Medium::new("ends");
        let cycles = |life: &Life| {
            let counts = life.counts(at(0));
            (counts.power_cycles, counts.unsafe_shutdowns)
        };
        let life = medium.life(17, 0);
        assert_eq!((life.number(), cycles(&life)), (17, (1, 0)));
        // Killed before any host has enabled it, and with one that was not shut down.
        let life = medium.life(18, 0);
        assert_eq!((life.number(), cycles(&life)), (17, (2, 1)));
        life.enabled(1, at(1)).expect("saved");
        let life = medium.life(18, 0);
        assert_eq!(cycles(&life), (3, 2));
        // Killed after a shutdown notification; after one of two controllers; after another start.
        life.enabled(1, at(1)).expect("saved");
        life.shut_down(1, at(2)).expect("saved");
        let life = medium.life(18, 0);
        assert_eq!(cycles(&life), (4, 2));
        life.enabled(3, at(1)).expect("saved");
        life.shut_down(1, at(2)).expect("saved");
        let life = medium.life(18, 0);
        assert_eq!(cycles(&life), (5, 3));
        life.shut_down(1, at(2)).expect("saved");
        life.enabled(1, at(3)).expect("saved");
        let life = medium.life(18, 0);
        assert_eq!(cycles(&life), (6, 4));
        // A power cut while the process goes on is counted once, and an end in order not at all.
        life.power_off(at(7200), false).expect("saved");
        life.power_off(at(7201), false).expect("saved");
        life.power_on(at(8000)).expect("saved");
        assert_eq!((cycles(&life), life.counts(at(8001)).power_on_s), ((7, 5), 7208));
        life.power_off(at(8001), true).expect("saved");
        let life = medium.life(18, 100);
        assert_eq!((cycles(&life), life.counts(at(100)).power_on_s), ((8, 5), 7208));
    }

    #[test]
    fn counts_are_those_of_the_last_save_and_of_all_controllers() {
        let medium = Medium::new("counts");
        let life = medium.life(1, 0);
        for block_bytes in [512, 4096] {
            let counters = Arc::new(Counters::default());
            life.add(counters.clone(), block_bytes);
            counters.writes.add(1);
            counters.blocks_written.add(8);
            counters.media_errors.add(3);
        }
        let counts = life.counts(at(0));
        assert_eq!((counts.writes, counts.bytes_written, counts.media_errors), (2, 36_864, 6));
        life.save(at(0)).expect("saved");
        let counters = Arc::new(Counters::default());
        life.add(counters.clone(), 512);
        counters.reads.add(5);
        let after = medium.life(1, 0).counts(at(0));
        assert_eq!((after.reads, after.writes, after.bytes_written), (0, 2, 36_864));
        assert_eq!(life.counts(at(0)).reads, 5, "of this process");
    }

    #[test]
    fn a_file_without_its_life_is_another_drive_and_a_bad_life_is_named() {
        let medium = Medium::new("bad");
        assert_eq!(medium.life(1, 0).number(), 1);
        let kept = beside(&medium.0);
        let text = std::fs::read_to_string(&kept).expect("it was written");
        std::fs::remove_file(&kept).expect("there is one");
        assert_eq!(medium.life(2, 0).number(), 2);
        let checksum = text.trim_end().rsplit(' ').next().expect("a last word");
        let wrong = &format!("checksum {checksum} is wrong");
        for (bad, expected) in [
            ("", "found its end, expected \"doorbell drive 1\""),
            (HEAD, "found its end, expected number and a whole number"),
            (
                &text[..text.find(CHECKSUM).expect("its end")],
                "found its end, expected crc32c and a whole number",
            ),
            (&text.replace("reads 0", "reads 1"), wrong),
            (&text.replace("reads 0", "reads +0"), wrong),
            (&format!("{text}\n"), wrong),
            (
                &text.replace("reads 0", "reads -1"),
                "line 6: found \"reads -1\", expected reads and a whole number",
            ),
        ] {
            std::fs::write(&kept, bad).expect("written");
            let error = Life::at(&medium.0, 3).expect_err("refused").to_string();
            assert_eq!(error, format!("{}: {expected}", kept.display()));
            assert_eq!(check(&medium.0).expect_err("refused").to_string(), error);
        }
        // Each time under a name of its own.
        for ending in ["damaged", "damaged.2"] {
            std::fs::write(&kept, "bad").expect("written");
            let away = put_away(&medium.0).expect("renamed");
            assert_eq!(away, kept.with_added_extension(ending));
            assert_eq!(std::fs::read_to_string(away).expect("it is there"), "bad");
            check(&medium.0).expect("none is good");
        }
        // By a link it is the same drive, also if the link was there first; links in a circle end.
        let [link, second, circle] =
            ["link", "second", "circle"].map(|at| medium.0.with_file_name(at));
        for (target, link) in [("drive.img", &link), ("link", &second), ("circle", &circle)] {
            std::os::unix::fs::symlink(target, link).expect("a link");
        }
        for link in [&link, &second] {
            assert_eq!(beside(link), kept);
        }
        std::fs::remove_file(&medium.0).expect("there is one");
        assert_eq!(beside(&second), kept);
        assert!(Life::at(&circle, 5).is_ok());
        // A file that is made again is a new drive, whatever is beside it.
        std::fs::write(&medium.0, []).expect("written");
        assert_eq!(Life::at(&medium.0, 4).expect("a life").number(), 4);
    }
}
