//! Namespace lists: ascending identifiers, then zeros (NVMe base 2.0, 4.4.2).

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Nsid;
use crate::nvme::layout;

/// Up to 1024 namespace identifiers.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NamespaceList {
    /// Identifiers; the first 0 ends the list.
    pub ids: [U32; 1024],
}

layout!(NamespaceList, 4096, { ids @ 0 });

impl NamespaceList {
    /// The first 1024 of `namespaces`, which must be in ascending order, that are greater than `after`.
    pub fn after(after: Nsid, namespaces: impl IntoIterator<Item = Nsid>) -> NamespaceList {
        let mut ids = [U32::ZERO; 1024];
        let above = namespaces.into_iter().filter(|nsid| *nsid > after);
        for (slot, nsid) in ids.iter_mut().zip(above) {
            *slot = nsid.0.into();
        }
        NamespaceList { ids }
    }

    /// Identifiers up to the first 0.
    pub fn iter(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.ids.iter().map(|id| Nsid(id.get())).take_while(|nsid| *nsid != Nsid::NONE)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn namespace_list_starts_after_given_nsid() {
        let list = NamespaceList::after(Nsid(1), [1, 2, 0x305].map(Nsid));
        assert_eq!(list.as_bytes()[..12], [2, 0, 0, 0, 5, 3, 0, 0, 0, 0, 0, 0]);
        assert_eq!(list.iter().collect::<Vec<_>>(), [2, 0x305].map(Nsid));
    }

    #[test]
    fn namespace_list_stops_at_1024() {
        let list = NamespaceList::after(Nsid(0), (1..=2000).map(Nsid));
        assert_eq!(list.iter().count(), 1024);
        assert_eq!(list.iter().last(), Some(Nsid(1024)));
        assert_eq!(NamespaceList::after(Nsid(7), []).iter().count(), 0);
    }
}
