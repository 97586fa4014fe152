//! Suspended state of the flash translation layer, between two executors.
//!
//! It is passed on together with the flash, so that a drive that was never switched off needs no mount.

use alloc::rc::Rc;

use runtime::Rt;

use crate::ftl::{Ftl, Inner, Task};
use crate::options::{Error, MountError, Options};
use crate::pages::Pages;
use crate::state::State;
use crate::stats::Counters;

/// Complete state of the layer with nothing in flight. Passed on with a prepared flash, it spares the next
/// device the scan of a mount. A copy shares the memory of a whole map, and of the table of valid units,
/// until one of the two changes it.
#[derive(Clone)]
pub struct Asleep(State);

/// Tasks that read and write map parts concurrently, if the map is cached.
const MAPPERS: u32 = 16;

impl<P: Pages> Inner<P> {
    /// Starts the tasks.
    pub fn start(self: Rc<Self>) -> Ftl<P> {
        self.spawn_tasks();
        Ftl(self)
    }

    pub fn spawn_tasks(self: &Rc<Self>) {
        for die in 0..self.layout.shape.dies {
            self.run(Task::Die, self.clone().die(die));
        }
        self.run(Task::Collector, self.clone().collector());
        self.run(Task::Eraser, self.clone().eraser());
        self.run(Task::Keeper, self.clone().keeper());
        if self.state.borrow().cached().is_some() {
            for _ in 0..MAPPERS {
                self.run(Task::Mapper, self.clone().mapper());
            }
        }
        self.form();
    }
}

impl<P: Pages> Ftl<P> {
    /// Returns when all written data are on flash and nothing is in flight.
    ///
    /// # Errors
    /// [`Error::WornOut`] if there is no space left.
    pub async fn settle(&self) -> Result<(), Error> {
        loop {
            let seen = self.0.landed.version();
            {
                let mut state = self.0.state.borrow_mut();
                if state.is_quiet() {
                    return Ok(());
                }
                if state.worn_out {
                    return Err(Error::WornOut);
                }
                state.seal_note();
                state.force = state.force.max(state.buffer.next_order() - 1);
            }
            self.0.form();
            self.0.close_all();
            self.0.hurry_parts();
            self.0.landed.changed(&self.0.rt, seen).await;
        }
    }

    /// Suspends the layer after its tasks have been dropped. `None` if something was in flight (call
    /// [`settle`](Ftl::settle) first) or if another clone exists.
    pub fn sleep(self) -> Option<Asleep> {
        let mut state = Rc::into_inner(self.0)?.state.into_inner();
        state.supers.share();
        state.is_quiet().then_some(Asleep(state))
    }

    /// Resumes on the flash on which the layer was suspended: like a mount, but without its time. `options`
    /// must equal those before.
    ///
    /// # Errors
    /// [`MountError::Shape`] if the flash differs; [`MountError::Options`] if the options do not fit.
    pub fn wake(
        rt: &Rt,
        pages: Rc<P>,
        options: &Options,
        asleep: Asleep,
    ) -> Result<Ftl<P>, MountError> {
        let layout = crate::mount::check(pages.shape(), options)?;
        let Asleep(mut state) = asleep;
        if state.layout.shape != layout.shape {
            return Err(MountError::Shape);
        }
        (state.counters, state.rows_at_checkpoint) = (Counters::default(), 0);
        if let Some(cached) = state.cached_mut() {
            cached.wake();
        }
        let (inner, _) = Inner::new(rt, pages, options, layout, Some(state));
        Ok(Rc::new(inner).start())
    }
}

impl State {
    /// Returns true if the buffer is empty and no superpage is in flight.
    fn is_quiet(&self) -> bool {
        let idle = |queue: &crate::job::Queue| queue.jobs.is_empty() && queue.flying.is_none();
        self.buffer.oldest_order().is_none()
            && self.note.is_none()
            && self.reserve_copy.is_none()
            && self.collection.rows == 0
            && self.closing.is_empty()
            && self.cached().is_none_or(|cached| cached.is_quiet())
            && self.queues.iter().all(idle)
    }
}
