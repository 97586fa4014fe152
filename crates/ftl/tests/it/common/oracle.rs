//! Oracle: independent record of writes and flushes, which gives the allowed results of a read.

use ftl::{Error, Ftl, Pages};
use runtime::Rng;

const BLOCK: usize = 512;

/// Versions of a unit's blocks; 0: unwritten, reads as zeros.
type Blocks = [u32; 2];

/// A unit: all contents that are allowed after a power cut, oldest first. The last is the current one.
#[derive(Clone, Debug)]
struct Unit {
    may: Vec<Blocks>,
    /// Number of changes that have returned, and number of changes that were dropped from `may`.
    done: usize,
    gone: usize,
}

/// All units. Each client has its own units.
#[derive(Clone)]
pub struct Oracle {
    units: Vec<Unit>,
    next: u32,
}

/// State that a flush guarantees once it has returned.
pub struct Promise(Vec<usize>);

/// Bytes of a block.
pub fn block(number: u64, version: u32) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    if version > 0 {
        for (at, word) in bytes.chunks_exact_mut(16).enumerate() {
            word[..8].copy_from_slice(&(number + 1).to_le_bytes());
            word[8..12].copy_from_slice(&version.to_le_bytes());
            word[12..].copy_from_slice(&(at as u32).to_le_bytes());
        }
    }
    bytes
}

fn version(number: u64, bytes: &[u8]) -> Result<u32, String> {
    let version = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
    if bytes == block(number, version) {
        return Ok(version);
    }
    let other = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    Err(format!("block {number} holds a mixture, or block {other} - 1, version {version}"))
}

impl Oracle {
    pub fn new(units: u32) -> Oracle {
        let unit = Unit { may: vec![[0; 2]], done: 0, gone: 0 };
        Oracle { units: vec![unit; units as usize], next: 1 }
    }

    pub fn units(&self) -> u32 {
        self.units.len() as u32
    }

    /// Begins a write to these blocks of a unit; returns their bytes.
    pub fn write(&mut self, unit: u32, first: usize, blocks: usize) -> Vec<u8> {
        let version = self.next;
        self.next += 1;
        let one = &mut self.units[unit as usize];
        let mut now = *one.may.last().unwrap();
        now[first..first + blocks].fill(version);
        one.may.push(now);
        let number = |at: usize| u64::from(unit) * 2 + at as u64;
        (first..first + blocks).flat_map(|at| block(number(at), version)).collect()
    }

    pub fn trim(&mut self, unit: u32, first: usize, blocks: usize) {
        let one = &mut self.units[unit as usize];
        let mut now = *one.may.last().unwrap();
        now[first..first + blocks].fill(0);
        one.may.push(now);
    }

    /// Records that the last write or trim of this unit has returned.
    pub fn done(&mut self, unit: u32) {
        let one = &mut self.units[unit as usize];
        one.done = one.gone + one.may.len() - 1;
    }

    pub fn flush(&self) -> Promise {
        Promise(self.units.iter().map(|unit| unit.done).collect())
    }

    /// Records that the flush has returned.
    pub fn flushed(&mut self, promise: &Promise) {
        for (unit, promised) in self.units.iter_mut().zip(&promise.0) {
            let older = promised.saturating_sub(unit.gone);
            unit.may.drain(..older);
            unit.gone += older;
        }
    }

    /// With a protected cache: guarantees everything that has returned.
    pub fn all_promised(&mut self) {
        let promise = self.flush();
        self.flushed(&promise);
    }

    /// After a power cut: checks that all contents are allowed, and takes them as the current ones.
    pub async fn settle<P: Pages>(&mut self, ftl: &Ftl<P>) -> Result<(), String> {
        for unit in 0..self.units() {
            let held = held(ftl, unit).await?;
            let one = &mut self.units[unit as usize];
            if !one.may.contains(&held) {
                return Err(format!("unit {unit} holds {held:?}, may be {:?}", one.may));
            }
            *one = Unit { may: vec![held], done: 0, gone: 0 };
        }
        Ok(())
    }

    /// While power is on: checks that these are the newest bytes of a block.
    pub fn is_newest(&self, number: u64, bytes: &[u8]) -> Result<(), String> {
        let now = self.units[number as usize / 2].may.last().unwrap()[number as usize % 2];
        match version(number, bytes)? {
            found if found == now => Ok(()),
            found => Err(format!("block {number} holds version {found}, not {now}")),
        }
    }

    /// While power is on: checks that this unit holds the newest data.
    pub async fn check<P: Pages>(&self, ftl: &Ftl<P>, unit: u32) -> Result<(), String> {
        let held = held(ftl, unit).await?;
        let now = self.units[unit as usize].may.last().unwrap();
        if held == *now { Ok(()) } else { Err(format!("unit {unit} holds {held:?}, not {now:?}")) }
    }
}

async fn held<P: Pages>(ftl: &Ftl<P>, unit: u32) -> Result<Blocks, String> {
    let first = u64::from(unit) * 2;
    let mut bytes = [0; 2 * BLOCK];
    let failed = |error: Error| format!("unit {unit}: {error}");
    ftl.read(first, 2).await.map_err(failed)?;
    ftl.lend(first, 2, &mut |at, run| bytes[at as usize..][..run.len()].copy_from_slice(run))
        .map_err(failed)?;
    Ok([version(first, &bytes[..BLOCK])?, version(first + 1, &bytes[BLOCK..])?])
}

/// Random part of a unit: first block, and number of blocks.
pub fn part(rng: &mut Rng) -> (usize, usize) {
    [(0, 2), (0, 2), (0, 1), (1, 1)][rng.below(4) as usize]
}
