//! Which queue a command goes to: policies of Kristian Elsebø, "Improving Disk Performance in Vortex With
//! NVMe" (2015), section 4.5.

use alloc::rc::Rc;
use core::cell::Cell;

/// How commands of several cores are spread over queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// All queues in turn, whichever core asks: each is shared, and has a lock.
    RoundRobin,
    /// A queue for each core, and no lock.
    PerCore,
    /// As many queues for each core as there are for all, in turn, and no lock.
    Pool,
    /// One queue of 128 commands under a lock, as a RAID controller has.
    Single,
}

/// Commands of the one queue of [`Policy::Single`].
pub const SINGLE_DEPTH: u16 = 128;

/// The queues that a policy wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How many.
    pub queues: u16,
    /// Commands in flight of each.
    pub depth: u16,
}

impl Shape {
    /// Commands that can be outstanding at once.
    pub const fn outstanding(&self) -> u64 {
        self.queues as u64 * self.depth as u64
    }
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 4] =
        [Policy::Single, Policy::RoundRobin, Policy::PerCore, Policy::Pool];

    /// Whether cores share queues, and so take turns under a lock.
    pub const fn is_shared(self) -> bool {
        matches!(self, Policy::RoundRobin | Policy::Single)
    }

    /// The queues for so many cores, of a controller that has `queues` for `depth` commands each. With fewer
    /// queues than cores, cores without a queue of their own share one, from the first on.
    pub fn shape(self, cores: u16, queues: u16, depth: u16) -> Shape {
        let (cores, queues) = (cores.max(1), queues.max(1));
        match self {
            Policy::RoundRobin => Shape { queues, depth },
            Policy::PerCore => Shape { queues: cores.min(queues), depth },
            Policy::Pool => Shape { queues: (queues / cores).max(1) * cores.min(queues), depth },
            Policy::Single => Shape { queues: 1, depth: depth.min(SINGLE_DEPTH) },
        }
    }
}

/// One core's choice among queues, command by command.
#[derive(Clone, Debug)]
pub struct Chooser {
    first: u16,
    count: u16,
    /// Whose turn it is: of all cores together where queues are shared.
    next: Rc<Cell<u16>>,
}

impl Chooser {
    /// Choosers for so many cores among the queues of a shape.
    pub fn for_cores(policy: Policy, cores: u16, shape: Shape) -> impl Iterator<Item = Chooser> {
        let together = Rc::new(Cell::new(0));
        let each = match policy {
            Policy::RoundRobin | Policy::Single => shape.queues,
            Policy::PerCore => 1,
            Policy::Pool => (shape.queues / cores.max(1)).max(1),
        };
        (0..cores).map(move |core| match policy.is_shared() {
            true => Chooser { first: 0, count: each, next: together.clone() },
            false => {
                let first = (core * each) % shape.queues;
                Chooser { first, count: each, next: Rc::default() }
            }
        })
    }

    /// The queue of the next command.
    pub fn choose(&self) -> u16 {
        let turn = self.next.get();
        self.next.set(if turn + 1 >= self.count { 0 } else { turn + 1 });
        self.first + turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Elsebø (2015), 4.5 and 5.4: eight cores, and an SSD of 31 queues of 4096 entries.
    #[test]
    fn the_counts_of_the_thesis() {
        let counts = [
            (Policy::RoundRobin, 31, 126_945),
            (Policy::PerCore, 8, 32_760),
            (Policy::Pool, 24, 98_280),
            (Policy::Single, 1, 128),
        ];
        for (policy, queues, outstanding) in counts {
            let shape = policy.shape(8, 31, 4095);
            assert_eq!((shape.queues, shape.outstanding()), (queues, outstanding), "{policy:?}");
        }
        assert_eq!(Policy::Pool.shape(8, 31, 4095).outstanding() / 8, 12_285);
    }

    fn choices(policy: Policy, cores: u16, queues: u16) -> Vec<Vec<u16>> {
        let shape = policy.shape(cores, queues, 8);
        let choosers: Vec<_> = Chooser::for_cores(policy, cores, shape).collect();
        let rounds: Vec<Vec<u16>> =
            (0..4).map(|_| choosers.iter().map(Chooser::choose).collect()).collect();
        assert!(rounds.iter().flatten().all(|queue| *queue < shape.queues));
        rounds
    }

    #[test]
    fn who_goes_where() {
        assert_eq!(choices(Policy::RoundRobin, 2, 3), [[0, 1], [2, 0], [1, 2], [0, 1]]);
        assert_eq!(choices(Policy::PerCore, 2, 3), [[0, 1]; 4]);
        assert_eq!(choices(Policy::Pool, 2, 5), [[0, 2], [1, 3], [0, 2], [1, 3]]);
        assert_eq!(choices(Policy::Single, 2, 5), [[0, 0]; 4]);
        assert_eq!(choices(Policy::PerCore, 3, 2), [[0, 1, 0]; 4], "fewer queues than cores");
        assert_eq!(choices(Policy::Pool, 3, 2), [[0, 1, 0]; 4]);
    }
}
