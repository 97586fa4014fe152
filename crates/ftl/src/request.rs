//! State of host-directed GC: the request of the host, and how it is waited for.

/// The current request; at most one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub superblock: u32,
    /// Erase count when it was chosen: a superblock that was erased since is not collected.
    pub erases: u32,
    /// Superpages that may be in flight for it.
    pub rows: u32,
    pub stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waits,
    /// It is the collector's victim; it had this many valid units.
    Begun(u32),
    Ended(Result<u32, NotCollected>),
}

/// State of the host-directed collector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leader {
    /// It is notified when fewer than this many units are left.
    pub below: u64,
    /// A wait for it has timed out.
    pub silent: bool,
    /// The collector idles so that it may send a request.
    pub awaited: bool,
}

impl Leader {
    pub fn new(below: u64) -> Leader {
        Leader { below, silent: false, awaited: false }
    }
}

/// Why a superblock that was named is not collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotCollected {
    /// There is none of this number.
    #[error("there are {superblocks} superblocks")]
    Number {
        /// Number of superblocks.
        superblocks: u32,
    },
    /// Another is named, and not yet gone over.
    #[error("another superblock is being collected by its number")]
    Busy,
    /// Its erase count has changed, collecting it would free no space, or it cannot be moved into the space
    /// left.
    #[error("the superblock can't be collected, or not any more")]
    Changed,
    /// Too many blocks have gone bad: the drive is read-only.
    #[error("too many blocks of flash have gone bad")]
    WornOut,
}
