//! Start of an array with a journal: failed members, and replay of changes.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use bus::HostPort;
use wire::Lba;

use super::failure::{is_lost, is_unreadable};
use super::journal::Journal;
use super::record::{Change, Group, Item, SUPERBLOCKS, Superblock, sum};
use super::{Out, Place, Shared, StartError, Unfit};
use host::{BlockDevice, IoError, Kind};

/// An entry that may be valid: its place, and what each member's record has of it.
struct Entry {
    slot: u32,
    items: Vec<(u32, Item)>,
}

fn unfit<T>(what: &'static str, found: u64, expected: &'static str) -> Result<T, Unfit> {
    Err(Unfit { what, found, expected })
}

/// Fails if the members are of different arrays: for the first that is not of the array of most. One that is
/// out in that array is a new device for it.
fn of_one_array(known: &mut [Option<Superblock>]) -> Result<(), StartError> {
    let named = || known.iter().flatten().filter(|one| one.array != 0);
    let votes = |array| named().filter(|one| one.array == array).count();
    // Of several with as many, the first member's.
    let Some(expected) = named().rev().map(|one| one.array).max_by_key(|array| votes(*array))
    else {
        return Ok(());
    };
    let newest = named().filter(|one| one.array == expected).max_by_key(|one| one.version());
    let out = newest.and_then(|newest| newest.out);
    let is_other = |one: &Superblock| ![0, expected].contains(&one.array);
    for one in known {
        match *one {
            Some(other) if is_other(&other) && out == Some(other.member) => *one = None,
            Some(other) if is_other(&other) => {
                let (member, found) = (other.member, other.array);
                return Err(StartError::OtherArray { member, found, expected });
            }
            _ => {}
        }
    }
    Ok(())
}

impl<P: HostPort, D: BlockDevice + Clone> Shared<P, D> {
    /// Reads the superblocks of all members but the missing one, and replays changes that may have been
    /// interrupted. Returns their number.
    pub async fn start(&self, number: usize, missing: Option<u32>) -> Result<u64, StartError> {
        let Some(journal) = &self.journal else { return Ok(0) };
        self.out.set(missing.map(|member| Out { member, rebuilt: 0 }));
        let mut known = self.superblocks(journal, number).await?;
        of_one_array(&mut known)?;
        let newest = self.newest(&known)?;
        self.validate_members(&known, newest)?;
        if newest.is_none() {
            self.validate_layout(journal, number).await?;
        }
        let failed = |error: IoError| {
            let expected = "members that can be read and written";
            let what = "the block of a member that failed when the array was started";
            Unfit { what, found: error.lba.map_or(0, |lba| lba.0), expected }
        };
        let mut again = 0;
        if let Some(newest) = newest {
            journal.begin(newest);
            if newest.formed {
                again = self.replay(journal, number, newest).await.map_err(failed)?;
            }
        }
        self.flush_members(number).await.map_err(failed)?;
        self.begin_life(journal, number).await.map_err(failed)?;
        Ok(again)
    }

    /// Fails for an array of an older layout, which begins at another block.
    async fn validate_layout(&self, journal: &Journal, number: usize) -> Result<(), Unfit> {
        let members = 0..self.layout.members();
        let blocks = |member| self.disk(Place { number, member, block: 0 }).geometry().blocks;
        let blocks = members.clone().map(blocks).min().unwrap_or(0);
        for member in members {
            for block in journal.region.old_superblocks(blocks) {
                let bytes = self.bytes_of(Place { number, member, block }, 1).await;
                if let Some(version) = bytes.ok().and_then(|bytes| Superblock::old_version(&bytes))
                {
                    return unfit("the version of an array's journal", version, "3");
                }
            }
        }
        Ok(())
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

    /// Replays changes. A member whose part of the journal cannot be read is out, with its other parts: what
    /// it has said of the journal counts no more, and the others begin again.
    async fn replay(
        &self,
        journal: &Journal,
        number: usize,
        superblock: Superblock,
    ) -> Result<u64, IoError> {
        // Its blocks are not written again: it must not be believed after a cut during the replay.
        self.settle(journal, number).await?;
        let before = self.out.get();
        match self.carry_out_again(journal, number, superblock).await {
            Err(_) if before.is_none() && self.out.get().is_some() => {
                self.settle(journal, number).await?;
                self.carry_out_again(journal, number, superblock).await
            }
            done => done,
        }
    }

    /// Reads blocks of a member's journal; a member that cannot return them is out.
    async fn journal_bytes(&self, at: Place, blocks: u32) -> Result<Vec<u8>, IoError> {
        let bytes = self.bytes_of(at, blocks).await;
        if let Err(error) = bytes
            && is_unreadable(error.kind)
        {
            self.goes_on_without(at.member, error);
        }
        bytes
    }

    async fn carry_out_again(
        &self,
        journal: &Journal,
        number: usize,
        superblock: Superblock,
    ) -> Result<u64, IoError> {
        let mut again = 0;
        for entry in &self.entries(journal, number, superblock).await? {
            again += u64::from(self.entry_again(journal, number, entry).await?);
        }
        Ok(again)
    }

    /// Entries behind the tail of which every required member has a record, in order.
    async fn entries(
        &self,
        journal: &Journal,
        number: usize,
        superblock: Superblock,
    ) -> Result<Vec<Entry>, IoError> {
        let (mut tail, mut entries) = (superblock.tail, BTreeMap::<u64, Entry>::new());
        for member in (0..self.layout.members()).filter(|member| !self.is_out(*member, 0)) {
            for record in 0..journal.region.records() {
                let at = Place { number, member, block: journal.region.record(record) };
                let bytes = self.journal_bytes(at, journal.region.record_blocks()).await?;
                // Not those of other lives, whose entries are in place.
                let group = Group::read(&bytes).filter(|group| superblock.is_in_life(group.tail));
                let Some(Group { tail: newer, items, .. }) = group else { continue };
                tail = tail.max(newer);
                for item in items.into_iter().filter(|item| item.slot < journal.region.entries()) {
                    let sequence = item.sequence;
                    let new = || Entry { slot: item.slot, items: Vec::new() };
                    entries.entry(sequence).or_insert_with(new).items.push((member, item));
                }
            }
        }
        let has_all = |entry: &Entry| {
            let found = entry.items.iter().fold(0, |all, (member, _)| all | 1 << member);
            let is_wanted = |member: &u32| !self.is_out(*member, 0);
            let wanted =
                (0..self.layout.members()).filter(is_wanted).fold(0, |all, m| all | 1 << m);
            let parts = entry.items[0].1.parts;
            let agree = |(_, item): &(u32, Item)| (item.parts, item.slot) == (parts, entry.slot);
            parts & wanted == found && entry.items.iter().all(agree)
        };
        Ok(entries.split_off(&tail).into_values().filter(has_all).collect())
    }

    /// Replays an entry if all its parts are intact.
    async fn entry_again(
        &self,
        journal: &Journal,
        number: usize,
        entry: &Entry,
    ) -> Result<bool, IoError> {
        let mut parts = Vec::new();
        for (member, item) in &entry.items {
            let at = Place { number, member: *member, block: journal.region.data(entry.slot) };
            if let Change::Write { blocks, .. } = item.change {
                if u64::from(blocks) > self.layout.chunk() {
                    return Ok(false);
                }
                let bytes = self.journal_bytes(at, blocks).await?;
                if sum(&bytes) != item.sum {
                    return Ok(false);
                }
                parts.push((*member, bytes));
            }
        }
        for (member, item) in &entry.items {
            if let Change::Deallocate { block, blocks } = item.change {
                let disk = self.disk(Place { number, member: *member, block });
                disk.deallocate(Lba(block), blocks).await?;
            }
        }
        for ((member, bytes), (_, item)) in parts.iter().zip(&entry.items) {
            let Change::Write { block, .. } = item.change else { continue };
            let from = self.buffer(number, bytes.len())?;
            from.copy_in(0, bytes);
            self.write_or_without(Place { number, member: *member, block }, from, false).await?;
        }
        Ok(true)
    }
    /// Writes superblocks of a new life; twice the first time, because later a member without one is a
    /// foreign device.
    pub async fn begin_life(&self, journal: &Journal, number: usize) -> Result<(), IoError> {
        let bytes = (journal.region.record_blocks() * self.geometry.block_bytes) as usize;
        let members = 0..self.layout.members();
        let buffers = members.map(|_| self.buffer(number, bytes)).collect::<Result<_, _>>()?;
        // Of a start that has failed there may be some.
        journal.buffers.replace(buffers);
        journal.next_life();
        let recording = journal.record(&self.rt).ok_or(IoError::of(Kind::Closed, None))?;
        self.record(journal, number, &recording, |_| ()).await?;
        if !journal.state.borrow().superblock.formed {
            self.record(journal, number, &recording, |next| next.formed = true).await?;
        }
        Ok(())
    }
    /// Clears superblocks and records of a member that is about to be rebuilt: those of another array could
    /// be taken for this one's.
    pub async fn clear_records(
        &self,
        journal: &Journal,
        number: usize,
        member: u32,
    ) -> Result<(), IoError> {
        let region = &journal.region;
        let room =
            self.buffer(number, (region.record_blocks() * self.geometry.block_bytes) as usize)?;
        room.zero();
        let superblocks = (0..SUPERBLOCKS).map(|turn| region.superblock(turn));
        for block in superblocks.chain((0..region.records()).map(|number| region.record(number))) {
            let from = room.part(0, room.bytes());
            // Durable: a start after a cut must not find them.
            self.disk(Place { number, member, block }).write(Lba(block), from, true).await.1?;
        }
        Ok(())
    }
}
