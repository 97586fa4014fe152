//! Queue selection policies of Kristian Elsebø, "Improving Disk Performance in Vortex With NVMe" (2015),
//! section 4.5.

use alloc::rc::Rc;
use core::cell::Cell;

/// Distribution of several cores' commands over queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// All queues round robin, from every core: each is shared and has a lock.
    RoundRobin,
    /// One queue per core, without locks.
    PerCore,
    /// The queues divided evenly among the cores; each core uses its own round robin, without locks.
    Pool,
    /// One queue of 128 commands under a lock, like a RAID controller.
    Single,
}

/// Depth of the one queue of [`Policy::Single`].
pub const SINGLE_DEPTH: u16 = 128;

/// Number and depth of the queues of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of queues.
    pub queues: u16,
    /// Depth of each.
    pub depth: u16,
}

impl Shape {
    /// Most commands outstanding at once.
    pub const fn outstanding(&self) -> u64 {
        self.queues as u64 * self.depth as u64
    }
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 4] =
        [Policy::Single, Policy::RoundRobin, Policy::PerCore, Policy::Pool];

    /// True if cores share queues, and so need locks.
    pub const fn is_shared(self) -> bool {
        matches!(self, Policy::RoundRobin | Policy::Single)
    }

    /// First queue of a core, and number of queues that it uses.
    pub fn queues_of(self, core: u16, cores: u16, shape: Shape) -> (u16, u16) {
        let each = match self {
            Policy::RoundRobin | Policy::Single => return (0, shape.queues),
            Policy::PerCore => 1,
            Policy::Pool => (shape.queues / cores.max(1)).max(1),
        };
        ((core * each) % shape.queues, each)
    }

    /// Core that takes in the completions of a queue. Shared queues are distributed round robin, the first
    /// to core `first`.
    pub fn home(self, queue: u16, cores: u16, shape: Shape, first: u16) -> u16 {
        let cores = cores.max(1);
        match self {
            Policy::Pool => queue / (shape.queues / cores).max(1) % cores,
            Policy::PerCore => queue % cores,
            Policy::RoundRobin | Policy::Single => (queue % cores + first % cores) % cores,
        }
    }

    /// Shape for `cores` cores, on a controller with `queues` queues of `depth` commands. With fewer queues
    /// than cores, cores share the queues, from the first on.
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

/// Queue selection of one core.
#[derive(Clone, Debug)]
pub struct Chooser {
    first: u16,
    count: u16,
    /// Next queue; common to all cores if queues are shared.
    next: Rc<Cell<u16>>,
}

impl Chooser {
    /// Choosers of `cores` cores over the queues of a shape.
    pub fn for_cores(policy: Policy, cores: u16, shape: Shape) -> impl Iterator<Item = Chooser> {
        let together = Rc::new(Cell::new(0));
        (0..cores).map(move |core| {
            let (first, count) = policy.queues_of(core, cores, shape);
            let next = if policy.is_shared() { together.clone() } else { Rc::default() };
            Chooser { first, count, next }
        })
    }

    /// Queue of the next command.
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
    fn queue_counts_match_thesis() {
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
    fn home_cores_of_shared_queues_begin_with_the_first() {
        let homes = |policy: Policy, first| -> Vec<u16> {
            let shape = policy.shape(4, 9, 8);
            (0..shape.queues).map(|queue| policy.home(queue, 4, shape, first)).collect()
        };
        assert_eq!(homes(Policy::Single, 3), [3]);
        assert_eq!(homes(Policy::RoundRobin, 2), [2, 3, 0, 1, 2, 3, 0, 1, 2]);
        assert_eq!(homes(Policy::PerCore, 2), [0, 1, 2, 3], "a queue of a core's own stays there");
        assert_eq!(homes(Policy::Pool, 2), [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn chooser_distributes_commands_by_policy() {
        assert_eq!(choices(Policy::RoundRobin, 2, 3), [[0, 1], [2, 0], [1, 2], [0, 1]]);
        assert_eq!(choices(Policy::PerCore, 2, 3), [[0, 1]; 4]);
        assert_eq!(choices(Policy::Pool, 2, 5), [[0, 2], [1, 3], [0, 2], [1, 3]]);
        assert_eq!(choices(Policy::Single, 2, 5), [[0, 0]; 4]);
        assert_eq!(choices(Policy::PerCore, 3, 2), [[0, 1, 0]; 4], "fewer queues than cores");
        assert_eq!(choices(Policy::Pool, 3, 2), [[0, 1, 0]; 4]);
    }
}
