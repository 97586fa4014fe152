//! Host-directed GC: the log page of superblocks, the command that collects one, the feature that gives
//! GC to host or device, and the event that space is short (`wire::nvme::collect`).
//!
//! A malicious host cannot cause harm: an invalid number is rejected here, and a superblock that has changed,
//! is open or is being collected is rejected by the translation layer, which alone copies and erases. The
//! host reads only counts. If the host directs GC and stops responding, the device does not wait: when writes
//! would block, it runs GC by itself. A reset returns GC to the device.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use bus::DevicePort;
use ftl::NotCollected;
use ftl::policy::GcControl;
use media::Media;
use runtime::{Either, Signal, race};
use wire::nvme::collect::{Collect, HostCollection, SuperblockRow, Survey};
use wire::nvme::event::AsyncEvent;
use wire::nvme::status::Status;
use zerocopy::IntoBytes;

use super::Controller;
use flash::collections::Collections;

#[derive(Default)]
pub(super) struct HostControl {
    collections: OnceCell<Rc<dyn Collections>>,
    /// Threshold for the event, in mapping units; 0: the device directs GC.
    below: Cell<u32>,
    /// Notified when the feature is set, or the event is unmasked.
    changed: Signal,
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Enables host-directed GC for the controller's medium.
    ///
    /// # Panics
    /// If called twice.
    pub fn offer_collections(self: &Rc<Self>, collections: Rc<dyn Collections>) {
        assert!(self.features.collection.collections.set(collections).is_ok(), "one collector");
        self.rt.spawn(self.clone().tell_of_space());
    }

    pub(super) fn offers_collections(&self) -> bool {
        self.features.collection.collections.get().is_some()
    }

    fn collections(&self) -> Result<&Rc<dyn Collections>, Status> {
        self.features.collection.collections.get().ok_or(Status::INVALID_FIELD)
    }

    /// The log page: space, and one row per superblock.
    pub(super) fn superblocks_page(&self) -> Result<Vec<u8>, Status> {
        let collections =
            self.features.collection.collections.get().ok_or(Status::INVALID_LOG_PAGE)?;
        let survey = collections.survey().ok_or(Status::INTERNAL_ERROR)?;
        let header = Survey {
            left: survey.space.left.into(),
            hold: survey.space.hold.into(),
            start: survey.space.start.into(),
            superblocks: survey.superblocks.into(),
            superblock_units: survey.superblock_units.into(),
            gc_parallelism: survey.gc_parallelism.into(),
            reserved: [0; 28],
        };
        let mut page = header.as_bytes().to_vec();
        for superblock in 0..survey.superblocks {
            let row = match collections.candidate(superblock) {
                Some(one) => SuperblockRow {
                    valid: one.valid.into(),
                    units: one.units.into(),
                    erases: one.erases.into(),
                    age: u32::try_from(one.age).unwrap_or(u32::MAX).into(),
                },
                None => SuperblockRow::default(),
            };
            page.extend(row.as_bytes());
        }
        Ok(page)
    }

    /// Collects a superblock; returns when that is complete.
    pub(super) async fn collect(&self, what: Collect) -> Result<u32, Status> {
        let Collect { superblock, erases, rows } = what;
        let collected = self.collections()?.collect(superblock, erases, rows).await;
        collected.map_err(|why| match why {
            NotCollected::Number { .. } => Status::INVALID_FIELD,
            NotCollected::WornOut => Status::INTERNAL_ERROR,
            _ => Status::COMMAND_SEQUENCE_ERROR,
        })
    }

    /// Set Features: gives GC to the host or to the device.
    pub(super) fn set_gc_control(&self, to: HostCollection) -> Result<u32, Status> {
        let lead = match to.below() {
            0 => GcControl::Own,
            below => GcControl::Named(below.into()),
        };
        self.collections()?.lead(lead);
        self.features.collection.below.set(to.below());
        self.features.collection.changed.notify(&self.rt);
        Ok(0)
    }

    pub(super) fn lead(&self) -> Result<HostCollection, Status> {
        self.collections()?;
        Ok(HostCollection::new().with_below(self.features.collection.below.get()))
    }

    /// After a controller reset, GC returns to the device.
    pub(super) fn revoke_gc_control(&self) {
        if self.features.collection.below.get() > 0 {
            // Cannot fail: GC is only host-directed if the interface is present.
            let _ = self.set_gc_control(HostCollection::new());
        }
    }

    /// The host has read the log page: the event may be reported again.
    pub(super) fn tell_of_space_again(&self) {
        self.features.collection.changed.notify(&self.rt);
    }

    /// Reports that space is short, once until the host reads the page.
    async fn tell_of_space(self: Rc<Self>) {
        let Ok(collections) = self.collections() else { return };
        loop {
            let seen = self.features.collection.changed.version();
            let changed = self.features.collection.changed.changed(&self.rt, seen);
            let knows = self.health.events.borrow().knows_of(AsyncEvent::SPACE_SHORT);
            if self.features.collection.below.get() == 0 || knows {
                changed.await;
                continue;
            }
            if let Either::First(()) = race(collections.short(), changed).await {
                self.event(AsyncEvent::SPACE_SHORT);
            }
        }
    }
}
