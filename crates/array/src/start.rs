//! Start of an array with a journal: failed members, and replay of changes.

use alloc::vec;
use alloc::vec::Vec;

use bus::HostPort;
use wire::Lba;

use super::journal::Journal;
use super::record::{Change, Head, SUPERBLOCKS, Superblock, sum};
use super::{Out, Place, Shared, Unfit, is_lost};
use host::{BlockDevice, IoError, Kind};

/// An entry that may be valid: sequence number, place, and each member's head.
struct Entry {
    sequence: u64,
    slot: u32,
    heads: Vec<(u32, Head)>,
}

fn unfit<T>(what: &'static str, found: u64, expected: &'static str) -> Result<T, Unfit> {
    Err(Unfit { what, found, expected })
}

impl<P: HostPort, D: BlockDevice + Clone> Shared<P, D> {
    /// Reads the superblocks of all members but the missing one, and replays changes that may have been
    /// interrupted. Returns their number.
    pub async fn start(&self, number: usize, missing: Option<u32>) -> Result<u64, Unfit> {
        let Some(journal) = &self.journal else { return Ok(0) };
        self.out.set(missing.map(|member| Out { member, rebuilt: 0 }));
        let known = self.superblocks(journal, number).await?;
        let newest = self.newest(&known)?;
        self.validate_members(&known, newest)?;
        let failed = |error: IoError| {
            let expected = "members that can be read and written";
            let what = "the block of a member that failed when the array was started";
            Unfit { what, found: error.lba.map_or(0, |lba| lba.0), expected }
        };
        let mut again = 0;
        if let Some(newest) = newest {
            journal.begin(newest);
            if newest.formed {
                again = self.carry_out_again(journal, number, newest.tail).await.map_err(failed)?;
            }
        }
        self.flush_members(number).await.map_err(failed)?;
        self.begin_life(journal, number).await.map_err(failed)?;
        Ok(again)
    }

    /// Newest superblock of each member; a member that cannot be read is out.
    async fn superblocks(
        &self,
        journal: &Journal,
        number: usize,
    ) -> Result<Vec<Option<Superblock>>, Unfit> {
        let mut known = Vec::new();
        for member in 0..self.layout.members() {
            let mut newest: Option<Superblock> = None;
            for turn in 0..SUPERBLOCKS {
                let at = Place { number, member, block: journal.region.superblock(turn) };
                let Ok(bytes) = self.bytes_of(at, 1).await else { continue };
                if Superblock::is_of_old_layout(&bytes) {
                    return unfit("the version of an array's journal", 1, "2");
                }
                let Some(found) = Superblock::read(&bytes) else { continue };
                let (members, chunk) = (self.layout.members(), self.layout.chunk());
                if (found.members, found.chunk, found.member) != (members, chunk, member) {
                    let expected = "the array's own, each in its place";
                    return unfit("the member of an array", found.member.into(), expected);
                }
                let is_newer = |newest: Superblock| found.version() > newest.version();
                if newest.is_none_or(is_newer) {
                    newest = Some(found);
                }
            }
            known.push(newest);
        }
        self.validate().or_else(|_| unfit("members that answer", 0, "all but one"))?;
        Ok(known)
    }

    /// Reads blocks of a member; a member that does not respond is out.
    async fn bytes_of(&self, at: Place, blocks: u32) -> Result<Vec<u8>, IoError> {
        if self.is_out(at.member, 0) {
            return Err(IoError::of(Kind::Gone, None));
        }
        let mut bytes = vec![0; (blocks * self.geometry.block_bytes) as usize];
        let into = self.buffer(at.number, bytes.len())?;
        let (into, done) = self.disk(at).read(Lba(at.block), into).await;
        if let Err(error) = done {
            if is_lost(error.kind) {
                self.goes_on_without(at.member, error);
            }
            return Err(error);
        }
        into.copy_out(0, &mut bytes);
        Ok(bytes)
    }

    /// The superblock that counts. If two of the same version differ, a start was interrupted: that of the
    /// later start is on all members but one.
    fn newest(&self, known: &[Option<Superblock>]) -> Result<Option<Superblock>, Unfit> {
        let Some(version) = known.iter().flatten().map(Superblock::version).max() else {
            return Ok(None);
        };
        let of_version = || known.iter().flatten().filter(|one| one.version() == version);
        let votes = |out| of_version().filter(|one| one.out == out).count();
        let most = of_version().max_by_key(|one| votes(one.out)).expect("one has that version");
        let is_rival = |one: &&Superblock| one.out != most.out && votes(one.out) == votes(most.out);
        match of_version().find(is_rival) {
            Some(_) => {
                unfit("members that agree on the missing member", votes(most.out) as u64, "most")
            }
            None => Ok(Some(*most)),
        }
    }

    /// Determines the failed member: the one in the newest superblock, one that does not respond, and one
    /// without a superblock in a formed array.
    fn validate_members(
        &self,
        known: &[Option<Superblock>],
        newest: Option<Superblock>,
    ) -> Result<(), Unfit> {
        let mut out: Vec<u32> = self.out.get().map(|out| out.member).into_iter().collect();
        out.extend(newest.and_then(|newest| newest.out));
        if newest.is_some_and(|newest| newest.formed) {
            out.extend((0..).zip(known).filter(|(_, one)| one.is_none()).map(|(member, _)| member));
        }
        out.sort_unstable();
        out.dedup();
        if out.len() > 1 {
            let there = u64::from(self.layout.members()) - out.len() as u64;
            return unfit("members that are there and can be believed", there, "all but one");
        }
        self.out.set(out.first().map(|member| Out { member: *member, rebuilt: 0 }));
        Ok(())
    }

    async fn carry_out_again(
        &self,
        journal: &Journal,
        number: usize,
        tail: u64,
    ) -> Result<u64, IoError> {
        let mut entries = Vec::new();
        let slots = journal.state.borrow().free.clone();
        for slot in slots {
            if let Some(entry) = self.entry(journal, number, slot, tail).await? {
                entries.push(entry);
            }
        }
        entries.sort_unstable_by_key(|entry| entry.sequence);
        let mut again = 0;
        for entry in &entries {
            again += u64::from(self.entry_again(journal, number, entry).await?);
        }
        Ok(again)
    }

    /// Entry of this place, if every required member has a head of it.
    async fn entry(
        &self,
        journal: &Journal,
        number: usize,
        slot: u32,
        tail: u64,
    ) -> Result<Option<Entry>, IoError> {
        let mut heads: Vec<(u32, Head)> = Vec::new();
        for member in 0..self.layout.members() {
            if self.is_out(member, 0) {
                continue;
            }
            let at = Place { number, member, block: journal.region.head(slot) };
            let head = Head::read(&self.bytes_of(at, 1).await?);
            heads.extend(head.filter(|head| head.sequence >= tail).map(|head| (member, head)));
        }
        let Some(sequence) = heads.iter().map(|(_, head)| head.sequence).max() else {
            return Ok(None);
        };
        heads.retain(|(_, head)| head.sequence == sequence);
        let parts = heads[0].1.parts;
        let has = |member: u32| heads.iter().any(|(other, _)| *other == member);
        let mut wanted = (0..self.layout.members())
            .filter(|member| parts & 1 << member != 0 && !self.is_out(*member, 0));
        Ok(wanted.all(has).then_some(Entry { sequence, slot, heads }))
    }

    /// Replays an entry if all its parts are intact.
    async fn entry_again(
        &self,
        journal: &Journal,
        number: usize,
        entry: &Entry,
    ) -> Result<bool, IoError> {
        let mut parts = Vec::new();
        for (member, head) in &entry.heads {
            let at = Place { number, member: *member, block: journal.region.data(entry.slot) };
            if let Change::Write { blocks, .. } = head.change {
                if u64::from(blocks) > self.layout.chunk() {
                    return Ok(false);
                }
                let bytes = self.bytes_of(at, blocks).await?;
                if sum(&bytes) != head.sum {
                    return Ok(false);
                }
                parts.push((*member, bytes));
            }
        }
        for (member, head) in &entry.heads {
            if let Change::Deallocate { block, blocks } = head.change {
                let disk = self.disk(Place { number, member: *member, block });
                disk.deallocate(Lba(block), blocks).await?;
            }
        }
        for ((member, bytes), (_, head)) in parts.iter().zip(&entry.heads) {
            let Change::Write { block, .. } = head.change else { continue };
            let from = self.buffer(number, bytes.len())?;
            from.copy_in(0, bytes);
            self.write_or_without(Place { number, member: *member, block }, from, false).await?;
        }
        Ok(true)
    }
}
