//! Interrupt vectors of a client: eventfds that it has sent (vfio-user, "VFIO_USER_DEVICE_SET_IRQS").

use core::sync::atomic::{AtomicI32, Ordering};
use std::sync::Arc;
use std::vec::Vec;

use super::limits::VECTORS;
use crate::fd::Eventfd;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Intx,
    Msix,
}

impl Kind {
    /// Number of vectors of this kind.
    pub fn count(self) -> u32 {
        match self {
            Kind::Intx => 1,
            Kind::Msix => u32::from(VECTORS),
        }
    }
}

/// A change of interrupt set-up. Ranges have been validated.
#[derive(Clone)]
pub(super) enum Change {
    /// Assigns counters to the vectors from `start` on.
    Signal {
        kind: Kind,
        start: u32,
        counters: Vec<Option<Arc<Eventfd>>>,
    },
    /// Disables all vectors of a kind.
    Off(Kind),
    Trigger {
        kind: Kind,
        which: Vec<u32>,
    },
    Mask,
    Unmask,
}

/// Descriptor number of the counter being signalled; -1 if none. A client can revert a counter to blocking
/// and fill it: then the session finds the blocked counter here. Each device thread has one and stores to it
/// at each interrupt. Aligned to avoid false sharing.
#[repr(align(128))]
pub(super) struct Signalling(AtomicI32);

impl Signalling {
    pub fn new() -> Arc<Signalling> {
        Arc::new(Signalling(AtomicI32::new(-1)))
    }

    pub fn now(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Acquire)).filter(|number| *number >= 0)
    }

    fn signal(&self, counter: &Eventfd) {
        self.0.store(counter.number(), Ordering::Release);
        counter.signal();
        self.0.store(-1, Ordering::Release);
    }
}

pub(super) struct Vectors {
    signalling: Arc<Signalling>,
    msix: Vec<Option<Arc<Eventfd>>>,
    intx: Option<Arc<Eventfd>>,
    /// Masked by the client, or after a signal.
    masked: bool,
    /// An interrupt occurred while the pin was masked.
    pending: bool,
    /// The configuration space enables the pin.
    pub intx_enabled: bool,
    /// The function's mask registers mask the pin.
    silent: bool,
}

impl Vectors {
    pub fn new(signalling: Arc<Signalling>) -> Vectors {
        let msix = (0..VECTORS).map(|_| None).collect();
        Vectors {
            signalling,
            msix,
            intx: None,
            masked: false,
            pending: false,
            intx_enabled: true,
            silent: false,
        }
    }

    /// Signals an interrupt: on its vector's counter, or else on the pin's.
    ///
    /// The pin is a level, but its deassertion is not visible here: only the driver knows when it has
    /// consumed the posted entries. So the pin signals once, masks itself, and signals again when it is
    /// unmasked and more interrupts have occurred meanwhile. A driver may have handled those already:
    /// interrupts can be spurious, never lost.
    pub fn raise(&mut self, vector: u16) {
        if let Some(Some(counter)) = self.msix.get(usize::from(vector)) {
            self.signalling.signal(counter);
        } else if self.intx.is_some() {
            self.pending = true;
            self.speak();
        }
    }

    fn speak(&mut self) {
        if self.masked || !self.pending || !self.intx_enabled || self.silent {
            return;
        }
        if let Some(counter) = &self.intx {
            (self.masked, self.pending) = (true, false);
            self.signalling.signal(counter);
        }
    }

    /// Sets the enable bit of the configuration space.
    pub fn enable_intx(&mut self, enabled: bool) {
        self.intx_enabled = enabled;
        self.speak();
    }

    /// Sets the mask bit of the function's registers.
    pub fn silence(&mut self, silent: bool) {
        self.silent = silent;
        self.speak();
    }

    /// Applies a change by the client.
    pub fn change(&mut self, change: Change) {
        match change {
            Change::Signal { kind: Kind::Msix, start, counters } => {
                for (place, counter) in self.msix[start as usize..].iter_mut().zip(counters) {
                    *place = counter;
                }
            }
            Change::Signal { kind: Kind::Intx, counters, .. } => {
                self.intx = counters.into_iter().next().flatten();
                self.masked = false;
                self.speak();
            }
            Change::Off(Kind::Msix) => self.msix.fill(None),
            Change::Off(Kind::Intx) => {
                (self.intx, self.masked, self.pending) = (None, false, false);
            }
            Change::Trigger { kind: Kind::Msix, which } => {
                let counters = which.iter().filter_map(|v| self.msix[*v as usize].as_ref());
                counters.for_each(|counter| self.signalling.signal(counter));
            }
            Change::Trigger { kind: Kind::Intx, which } => {
                if !which.is_empty() {
                    self.pending = true;
                    self.speak();
                }
            }
            Change::Mask => self.masked = true,
            Change::Unmask => {
                self.masked = false;
                self.speak();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn counter() -> Arc<Eventfd> {
        Arc::new(Eventfd::new().unwrap())
    }

    #[test]
    fn msix_vectors_set_in_any_order_and_disabled() {
        let (mut vectors, third, first) = (Vectors::new(Signalling::new()), counter(), counter());
        for (start, counter) in [(3, &third), (1, &first)] {
            let counters = vec![Some(counter.clone())];
            vectors.change(Change::Signal { kind: Kind::Msix, start, counters });
        }
        for vector in [3, 1, 3, 0, 63, 64, u16::MAX] {
            vectors.raise(vector);
        }
        assert_eq!((third.take(), first.take()), (2, 1));
        vectors.change(Change::Trigger { kind: Kind::Msix, which: vec![3, 2] });
        assert_eq!(third.take(), 1);
        vectors.change(Change::Signal { kind: Kind::Msix, start: 3, counters: vec![None] });
        vectors.raise(3);
        vectors.raise(1);
        assert_eq!((third.take(), first.take()), (0, 1));
        vectors.change(Change::Off(Kind::Msix));
        vectors.raise(1);
        assert_eq!(first.take(), 0);
    }

    #[test]
    fn intx_signals_once_until_unmasked_and_loses_none() {
        let (mut vectors, pin) = (Vectors::new(Signalling::new()), counter());
        let counters = vec![Some(pin.clone())];
        vectors.change(Change::Signal { kind: Kind::Intx, start: 0, counters });
        vectors.raise(0);
        vectors.raise(1);
        assert_eq!(pin.take(), 1, "it masks itself");
        vectors.change(Change::Unmask);
        assert_eq!(pin.take(), 1, "what came meanwhile");
        vectors.change(Change::Unmask);
        assert_eq!(pin.take(), 0, "nothing came meanwhile");
        vectors.change(Change::Mask);
        vectors.raise(0);
        assert_eq!(pin.take(), 0);
        vectors.enable_intx(false);
        vectors.change(Change::Unmask);
        assert_eq!(pin.take(), 0, "the configuration space forbids it");
        vectors.enable_intx(true);
        assert_eq!(pin.take(), 1);
        vectors.silence(true);
        vectors.raise(0);
        vectors.change(Change::Unmask);
        assert_eq!(pin.take(), 0, "the function's registers forbid it");
        vectors.silence(false);
        assert_eq!(pin.take(), 1, "what came meanwhile");
        vectors.change(Change::Off(Kind::Intx));
        vectors.raise(0);
        assert_eq!(pin.take(), 0);
    }
}
