//! Reads that nothing delays: served by the poller, without their slot's task.
//!
//! Live, on a medium without timing, a read is one copy. All that can make it wait, fail or be cut off
//! stays with the slots: whatever is unusual about a command is found here before anything is done.

use bus::{DevicePort, Direct};
use media::Media;
use wire::dcx::command::{Command, Entry, Request};

use super::queue::Queue;
use super::{Front, count};
use crate::moved::Blocks;

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Serves a read if neither medium nor bus takes time. Returns false, with nothing done that its slot
    /// may not repeat, if the command needs one.
    #[inline]
    pub(super) fn at_once(&self, queue: &Queue, entry: &Entry) -> bool {
        if self.faults.is_on() || self.faults.meter.is_watched() || self.sender.available() == 0 {
            return false;
        }
        let Some(open) = queue.open.get().filter(|_| !queue.pace.borrow().is_timed()) else {
            return false;
        };
        let Ok(Request { command: Command::Read { access, tag_version, wide }, .. }) =
            entry.parse()
        else {
            return false;
        };
        let Ok((to, at)) = self.locate(access) else { return false };
        let reader = (tag_version > 0).then(|| self.media.begin_read(tag_version));
        if matches!(reader, Some(None)) {
            return false;
        }
        self.rt.record(self.stages.dispatch);
        self.rt.record(self.stages.turn);
        let blocks = Blocks { media: &*self.media, at, flip: None };
        let how = self.posting(&open, wide);
        let Some(direct) = self.port.direct() else { return false };
        if direct.write_at_once(&[to], &blocks.first(to.bytes), how) != Ok(true) {
            return false;
        }
        count(&self.counters.at_once);
        if open.signals {
            self.port.interrupt(open.vector);
        }
        true
    }
}
