//! GC copies: within an endpoint, or through host memory.

use alloc::vec::Vec;

use bus::{Buffer, HostPort};
use ftl::{LOST, META, Page, PageRead, Part, Unit};
use wire::BusAddr;
use wire::pages::{Item, Source};

use super::call::Call;
use super::flash::{Remote, page_at};
use super::store::NONE;

impl<P: HostPort> Remote<P> {
    /// Reads the pages to be copied from other endpoints into host memory, unless they are still there.
    pub(super) async fn bring(&self, port: &P, call: &Call<'_, P>, wanted: &[(Page, u32)]) {
        // The call's places from the second on are for these.
        let fresh = call.pinned.iter().filter(|at| **at == NONE).count();
        let missing = || wanted.iter().zip(&call.pinned).filter(|(_, at)| **at == NONE);
        self.submit(port, &call.places[1..=fresh], |at| {
            let (&(page, units), _) = missing().nth(at).expect("as many as are missing");
            let part = Part { page, units, seen: PageRead::Unreadable };
            self.read_of(&part, call.places[1 + at], true, false)
        })
        .await;
        self.count(|counts| {
            counts.reads += fresh as u64;
            counts.again += fresh as u64;
        });
        for at in 1..=fresh {
            self.answered(port, call.places[at]).await;
        }
    }

    /// Host address of a copy's data; `None` if it could not be read.
    fn copied_from(
        &self,
        call: &Call<'_, P>,
        wanted: &[(Page, u32)],
        at: ftl::Place,
    ) -> Option<BusAddr> {
        let index = wanted.iter().position(|(page, _)| *page == at.page)?;
        let place = match call.pinned[index] {
            NONE => {
                let before = call.pinned[..index].iter().filter(|at| **at == NONE).count();
                call.places[1 + before]
            }
            pinned => pinned,
        };
        self.store.spare(place, self.shape.units)?;
        Some(BusAddr(self.store.data_at(place).0 + self.slot_at(at.unit) as u64))
    }

    /// A unit of a row, as a command item for the endpoint of `die`. `None` if it is the FTL's own and cannot
    /// be read any more.
    pub(super) fn item(
        &self,
        call: &Call<'_, P>,
        wanted: &[(Page, u32)],
        die: u32,
        unit: &Unit,
    ) -> Option<Item> {
        let (mut logical, mut source) = (unit.logical, Source::Nothing);
        match unit.from {
            ftl::Source::Nothing => {}
            ftl::Source::Slot(slot) => {
                let base = self.with_slots(Buffer::at).0;
                source = Source::Memory(BusAddr(base + self.slot_at(slot) as u64));
            }
            ftl::Source::Flash(place) if self.copies_there(die, place.page) => {
                self.count(|counts| counts.copied_there += 1);
                source = Source::Flash { page: page_at(place.page), unit: place.unit };
            }
            ftl::Source::Flash(place) => match self.copied_from(call, wanted, place) {
                Some(at) => {
                    self.count(|counts| counts.copied_here += 1);
                    source = Source::Memory(at);
                }
                // Readable before, but not any more: it is marked as lost.
                None if logical & META == 0 => logical |= LOST,
                None => return None,
            },
        }
        Some(Item { source, logical })
    }

    /// Returns true if a copy from this page to this die stays within an endpoint.
    fn copies_there(&self, die: u32, from: Page) -> bool {
        !self.through_host && core::ptr::eq(self.endpoint(from.die), self.endpoint(die))
    }

    /// Pages, with their units, that must be in host memory for a copy to this die.
    pub(super) fn foreign(&self, die: u32, units: &[Unit]) -> Vec<(Page, u32)> {
        let mut wanted: Vec<(Page, u32)> = Vec::new();
        for unit in units {
            let ftl::Source::Flash(place) = unit.from else { continue };
            if self.copies_there(die, place.page) {
                continue;
            }
            match wanted.iter_mut().find(|(page, _)| *page == place.page) {
                Some((_, mask)) => *mask |= 1 << place.unit,
                None => wanted.push((place.page, 1 << place.unit)),
            }
        }
        wanted
    }
}
