//! Saved states of flash drives: preconditioned or read once, and copied for each point that begins from it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use plan::{Plan, Start};
use world::device::{FlashState, MediumState};

use super::digests::Digests;
use crate::document;

/// A state, made by the first point that takes it.
type Slot = Arc<OnceLock<Result<FlashState, String>>>;

pub(super) struct Saved {
    states: Vec<State>,
    /// The last one stays in the process, for the next points of a worker.
    stays: bool,
}

/// The state that a worker made last: batches of a sweep's points follow one another.
static LAST: Mutex<Option<(String, Slot)>> = Mutex::new(None);

/// Of the files of states.
static DIGESTS: Mutex<Digests> = Mutex::new(Digests::new());

/// The last state if it is this plan's and its files have the same contents; otherwise an empty slot, which
/// is now the last one.
///
/// # Errors
/// A file of the state cannot be read.
fn last(plan: &Plan) -> Result<Slot, String> {
    let path = plan.medium.flash.as_ref().and_then(|flash| flash.state.as_ref());
    // The file of pages is known by these: they have a checksum of each of its rows.
    let files = path.into_iter().flat_map(|path| {
        ["", ".journal"].map(|end| {
            let mut name = path.clone().into_os_string();
            name.push(end);
            let mut digests = DIGESTS.lock().unwrap_or_else(PoisonError::into_inner);
            let digest = digests.of(name.as_ref(), document::unix_ms() / 1000);
            digest.map_err(|error| format!("{}: {error}", name.display()))
        })
    });
    let files: Vec<_> = files.collect::<Result<_, _>>()?;
    let name = format!("{:?} {files:?}", key(plan));
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match &*last {
        Some((known, slot)) if *known == name && slot.get().is_none_or(Result::is_ok) => {
            Ok(slot.clone())
        }
        _ => {
            // The old one's memory first.
            *last = None;
            let slot = Slot::default();
            *last = Some((name, slot.clone()));
            Ok(slot)
        }
    }
}

/// Mounts the state of a plan.
fn made(plan: &Plan, stays: bool) -> Result<FlashState, String> {
    let state = MediumState::to_read(plan).map_err(|error| error.to_string())?;
    let state = state.into_flash().expect("only flash has a key");
    let state = state.mounted(plan).map_err(|error| error.to_string())?;
    // A state that stays in an idle worker must not keep its file locked. Pages in a file are read later.
    let is_whole = plan.medium.resident_bytes.is_none();
    Ok(if stays && is_whole { state.duplicate() } else { state })
}

struct State {
    slot: Mutex<Option<Slot>>,
    /// Points that are to come; the last one takes the state itself.
    left: AtomicU64,
    is_counted: AtomicBool,
}

/// States are equal if their keys are: the chips, the flash software and what lies on them, but no times.
/// None: the drive is made with the run, as a fresh one, or there is none.
pub(super) fn key(plan: &Plan) -> Option<String> {
    let flash = plan.medium.flash.as_ref()?;
    if plan.array.is_some() || plan.medium.bridge.is_some() {
        return None;
    }
    if flash.start == Start::Fresh && flash.state.is_none() {
        return None;
    }
    let (seed, keep) = (plan.run.seed, plan.medium.contents.keep);
    let start = (flash.start, &flash.steady_for);
    let of_flash = (&flash.spec, &flash.software, flash.held_up, start, &flash.state);
    Some(format!("{seed} {keep:?} {of_flash:?}"))
}

impl State {
    /// One point less to come. True if none is left; a search may still come back for one.
    fn leave(&self) -> bool {
        let less = |left: u64| Some(left.saturating_sub(1));
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok_and(|left| left <= 1)
    }
}

impl Saved {
    /// `points`: of each state. `stays`: the state of the last point remains in memory, for the next ones.
    pub fn new(points: &[u64], stays: bool) -> Saved {
        let state = |points: &u64| State {
            slot: Mutex::new(None),
            left: AtomicU64::new(*points),
            is_counted: AtomicBool::new(false),
        };
        Saved { states: points.iter().map(state).collect(), stays }
    }

    /// The state for a point.
    ///
    /// # Errors
    /// The state cannot be made; the same for all of its points.
    pub fn take(&self, number: usize, plan: &Plan) -> Result<FlashState, String> {
        let state = &self.states[number];
        let mut slot = state.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let held = match &*slot {
            Some(held) => Ok(held.clone()),
            None if self.stays => last(plan),
            None => Ok(Slot::default()),
        };
        *slot = held.as_ref().ok().cloned();
        let is_last = state.leave();
        if is_last {
            *slot = None;
        }
        drop(slot);
        let held = held?;
        // Other points of this state wait here, those of others do not.
        let made = held.get_or_init(|| made(plan, self.stays));
        match made {
            Err(error) => Err(error.clone()),
            Ok(state) if !is_last => Ok(state.duplicate()),
            Ok(_) => match Arc::try_unwrap(held) {
                Ok(made) => made.into_inner().expect("made above"),
                Err(shared) => match shared.get().expect("made above") {
                    Ok(state) => Ok(state.duplicate()),
                    Err(error) => Err(error.clone()),
                },
            },
        }
    }

    /// A point that was to come will not: the last one drops the state.
    pub fn give_up(&self, number: usize) {
        let state = &self.states[number];
        let mut slot = state.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if state.leave() {
            *slot = None;
        }
    }

    /// True for the first call: the memory of the state is not counted yet.
    pub fn count(&self, number: usize) -> bool {
        !self.states[number].is_counted.swap(true, Ordering::Relaxed)
    }

    /// True for the first call after all points have taken it: its memory counts no more.
    pub fn discount(&self, number: usize) -> bool {
        let state = &self.states[number];
        state.left.load(Ordering::Relaxed) == 0 && state.is_counted.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(saved: &Saved) -> bool {
        saved.states[0].slot.lock().unwrap().as_ref().is_some_and(|slot| slot.get().is_some())
    }

    #[test]
    fn state_is_dropped_after_the_last_point_that_takes_it_or_gives_it_up() {
        let plan = Plan::open("small-flash", &[("medium.flash.start", "steady")]).unwrap();
        assert!(key(&plan).is_some());
        for taken in 1..=3 {
            let saved = Saved::new(&[3], false);
            assert!(saved.count(0) && !saved.count(0));
            for point in 0..3 {
                assert!(!saved.discount(0));
                assert_eq!(holds(&saved), point > 0, "after {point} points");
                match point < taken {
                    true => drop(saved.take(0, &plan).unwrap()),
                    false => saved.give_up(0),
                }
            }
            assert!(!holds(&saved), "{taken} points took it");
            assert!(saved.discount(0) && !saved.discount(0));
            // A search that comes back makes it again, for itself.
            drop(saved.take(0, &plan).unwrap());
            assert!(!holds(&saved));
        }
    }

    #[test]
    fn last_state_of_a_worker_is_made_once_until_another_or_a_changed_file() {
        let folder = testing::Folder::new("last-state");
        let path = folder.path("drive");
        let state = path.to_str().unwrap();
        let of = |sets: &[(&str, &str)]| Plan::open("small-flash", sets).unwrap();
        let (steady, filled) =
            ([("medium.flash.start", "steady")], [("medium.flash.start", "filled")]);
        let by_file = [("medium.flash.state", state)];
        std::fs::write(&path, "1").unwrap();
        let slots =
            [of(&steady), of(&steady), of(&filled), of(&steady)].map(|plan| last(&plan).unwrap());
        assert!(Arc::ptr_eq(&slots[0], &slots[1]));
        assert!(!Arc::ptr_eq(&slots[1], &slots[2]) && !Arc::ptr_eq(&slots[1], &slots[3]));
        let before = last(&of(&by_file)).unwrap();
        assert!(Arc::ptr_eq(&before, &last(&of(&by_file)).unwrap()));
        // Of the same length and, as a copy that keeps it, of the same time.
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        std::fs::write(&path, "2").unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
        let after = last(&of(&by_file)).unwrap();
        assert!(!Arc::ptr_eq(&before, &after), "the file has changed");
        assert!(after.set(Err("unreadable".to_owned())).is_ok());
        assert!(!Arc::ptr_eq(&after, &last(&of(&by_file)).unwrap()), "an error is not kept");
        let saved = Saved::new(&[2], true);
        drop([saved.take(0, &of(&steady)).unwrap(), saved.take(0, &of(&steady)).unwrap()]);
        assert!(last(&of(&steady)).unwrap().get().is_some(), "it stays");
        drop(saved);
        assert_idle_worker_locks_nothing();
    }

    fn assert_idle_worker_locks_nothing() {
        let folder = testing::Folder::new("idle-worker");
        let state = folder.path("drive");
        let sets = [("medium.flash.state", state.to_str().unwrap())];
        let plan = Plan::open("small-flash", &sets).unwrap();
        MediumState::new(&plan).unwrap().save(&plan).unwrap();
        for (stays, is_free) in [(true, true), (false, false)] {
            let saved = Saved::new(&[2], stays);
            let taken = saved.take(0, &plan).unwrap();
            assert_eq!(media::nand::Lock::exclusive(&state).is_ok(), is_free, "stays: {stays}");
            drop(taken);
        }
    }
}
