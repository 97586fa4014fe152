//! Control of a drive whose queues several device threads serve.
//!
//! Each thread counts its own commands, and looks for requests in its idle passes. A request has been applied
//! when all threads have applied it: in a pause each one sleeps, at a power cut each one ends its part.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use world::device_threads::{Part, ThreadedDevice, Watch};

use super::drive::{CHECK, Drive};
use super::polled;

impl Watch for Drive {
    fn attend<'a>(&'a self, part: &'a Part<'a>) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
        Box::pin(self.attend_thread(part))
    }

    fn account(&self, part: &Part<'_>) {
        let place = self.place(part.thread.number());
        place.post(&part.rt, &part.faults);
        place.add_to_before();
    }
}

impl Drive {
    /// The device of this drive: watched, if the drive is.
    pub(crate) fn watch(self: &Arc<Self>, device: ThreadedDevice) -> ThreadedDevice {
        match self.watched {
            true => device.watched_by(self.clone()),
            false => device,
        }
    }

    /// Applies requests on one thread until the power is cut, or until the part of the thread is to end in a
    /// pause.
    async fn attend_thread(&self, part: &Part<'_>) {
        let place = self.place(part.thread.number());
        place.wakes_this_thread();
        loop {
            let seen = self.asked();
            if self.is_cut() {
                return;
            }
            place.post(&part.rt, &part.faults);
            place.set_done(seen);
            // The thread sleeps here: no task of its part goes on.
            while self.asked() == seen && self.is_paused() && !self.stop.is_requested() {
                if part.thread.is_to_end() {
                    return;
                }
                self.stop.sleep(CHECK);
            }
            polled(&part.rt, || self.asked.load(Ordering::Relaxed) != seen).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bus::listen::Stop;
    use device::faults::Faults;
    use device::nvme::{DeviceThread, Threads};
    use plan::Plan;
    use runtime::{Log, Rt, STD_CLOCK, Span, WallClock};
    use world::interfaces::NVME;

    use super::*;

    fn drive(threads: usize) -> Drive {
        let (plan, stop) = (Plan::open("live", &[]).expect("a plan"), Stop::new());
        let stop = Arc::new(stop.expect("two descriptors"));
        Drive::new(NVME, Path::new("drive"), plan, 0, true, &stop).on_threads(threads)
    }

    /// Attends on a thread until its part ends.
    fn attend(drive: &Drive, thread: DeviceThread) {
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let part = Part { rt: rt.clone(), faults: Faults::none(), thread: &thread };
        rt.block_on(drive.attend_thread(&part));
    }

    /// Waits until the condition holds. Returns false if something hangs.
    fn holds_soon(condition: impl Fn() -> bool) -> bool {
        let since = STD_CLOCK.now();
        while !condition() && STD_CLOCK.now().since(since) < Span::s(60) {
            std::thread::yield_now();
        }
        condition()
    }

    /// The first thread waits for the others when a client leaves, or resets the function.
    #[test]
    fn paused_thread_ends_its_part_when_the_first_one_does() {
        let drive = drive(2);
        let _turn = drive.turn();
        drive.settings().paused = true;
        let [first, second] = Threads::of(2).try_into().ok().expect("two places");
        std::thread::scope(|scope| {
            let paused = scope.spawn(|| attend(&drive, second));
            scope.spawn(|| first.end_others());
            let has_ended = holds_soon(|| paused.is_finished());
            // It ends a part that has not ended.
            drive.switch_off();
            assert!(has_ended, "the thread pauses on");
        });
    }

    /// A request may come when a session has begun, and its threads have not.
    #[test]
    fn request_is_answered_by_threads_that_start_after_it() {
        let drive = drive(3);
        let _turn = drive.turn();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| drive.ask());
            assert!(holds_soon(|| drive.asked() == 1), "it asks");
            for thread in Threads::of(3) {
                let drive = &drive;
                scope.spawn(|| attend(drive, thread));
            }
            let answer = asked.join();
            drive.switch_off();
            assert_eq!(answer.expect("no panic"), Ok(()));
        });
    }

    /// A thread that looked during the cut has ended; the others must not go on without it.
    #[test]
    fn thread_that_looks_after_the_power_is_back_ends_too() {
        for off_before in [false, true] {
            let drive = drive(2);
            if off_before {
                drive.switch_off();
            }
            let _turn = drive.turn();
            if !off_before {
                drive.switch_off();
            }
            let mut places = Threads::of(2);
            for back in [false, true] {
                drive.settings().powered = back;
                let (drive, place) = (&drive, places.pop().expect("two places"));
                std::thread::scope(|scope| {
                    let part = scope.spawn(|| attend(drive, place));
                    let has_ended = holds_soon(|| part.is_finished());
                    // It ends a part that has not ended.
                    drive.switch_off();
                    assert!(has_ended, "a thread serves on, with the power back: {back}");
                });
            }
        }
    }
}
