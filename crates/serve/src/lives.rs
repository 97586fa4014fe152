//! Lives of the drives of a server: read from beside their files, and saved from time to time.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use device::life::Life;
use plan::{NUMBER_MAX, Plan};
use runtime::{STD_CLOCK, WallClock};
use world::RunError;

use crate::Events;

/// Interval of saves: what a server that is killed loses of a drive's counts, at most.
const SAVED_EVERY: Duration = Duration::from_secs(10);

/// Numbers of twelve digits, of which a serial number has room for one.
const SERIALS: u64 = 1_000_000_000_000;

/// A number for a drive above those that a plan gives, from a hash.
pub(crate) fn number_from(hash: u64) -> u64 {
    let from = NUMBER_MAX + 1;
    from + hash % (SERIALS - 2 * from)
}

/// A number for a new drive, by the operating system's randomness.
pub(crate) fn drawn() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(number_from(u64::from_le_bytes(bytes)))
}

/// The lives of `drives` drives of a plan. One without a file has a number that follows from `address`.
pub(crate) fn of(plan: &Plan, drives: usize, address: u64) -> Result<Vec<Arc<Life>>, RunError> {
    let life = |number: u32| {
        let mut medium = plan.medium.clone();
        medium.number_files(number);
        Ok(Arc::new(match medium.file() {
            Some(file) => {
                let life = drawn().and_then(|fresh| Life::at(file, fresh));
                life.map_err(RunError::of)?
            }
            None => {
                let life = Life::of(address + u64::from(number));
                life.power_on(STD_CLOCK.now()).map_err(RunError::of)?;
                life
            }
        }))
    };
    (0..drives as u32).map(life).collect()
}

/// Power comes to the drive of a plan, whose file is locked.
pub(crate) fn begin(plan: &Plan) -> Result<(), RunError> {
    let on = |life: &Arc<Life>| life.power_on(STD_CLOCK.now());
    plan.device.life.as_ref().map_or(Ok(()), on).map_err(RunError::of)
}

/// Saves lives while `serve` runs. When it has ended in order the power goes: the drives are flushed.
pub(crate) fn saved(
    lives: &[Arc<Life>],
    events: &Events<'_>,
    serve: impl FnOnce() -> Result<(), RunError>,
) -> Result<(), RunError> {
    std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        let save = move || {
            let mut told = false;
            while ended.recv_timeout(SAVED_EVERY) == Err(RecvTimeoutError::Timeout) {
                let failed = lives.iter().find_map(|life| life.save(STD_CLOCK.now()).err());
                if let Some(error) = failed.filter(|_| !told) {
                    events.note(format_args!("the drive's counts are not saved: {error}"));
                    told = true;
                }
            }
        };
        let saver = std::thread::Builder::new().name("lives".into()).spawn_scoped(scope, save);
        let served = saver.map_err(RunError::of).and_then(|_| serve());
        drop(end);
        served?;
        lives
            .iter()
            .try_for_each(|life| life.power_off(STD_CLOCK.now(), true))
            .map_err(RunError::of)
    })
}

/// FNV-1a of an address: a hash of the standard library may change with its version, and the names of drives
/// must not.
pub(crate) fn hash(address: &Path) -> u64 {
    use std::os::unix::ffi::OsStrExt;
    let absolute = std::path::absolute(address).unwrap_or_else(|_| address.to_owned());
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    absolute.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fold)
}
