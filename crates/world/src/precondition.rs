//! Preconditioned flash: filled sequentially or in random order, or in the steady state of overwrites.
//!
//! The steady state of uniform and of sequential writes is computed; that of others is reached by
//! overwriting the drive until write amplification no longer changes.

use std::path::Path;
use std::rc::Rc;

use ::flash::chips::Chips;
use ::flash::drive::Drive;
use ftl::policy::GcControl;
use ftl::{Asleep, Ftl};
use media::contents::Keep;
use media::nand::{Nand, Spec};
use media::{Extent, Media, MediaError};
use runtime::{Log, Rt};
use workload::pattern::{Ops, Target};
use workload::trace::Mapping;

use crate::error::{CheckError, MediumError, RunError};
use crate::medium::{chips, software};
use crate::work::Work;
use plan::{Flash, Overwrites, Plan, Start};

/// Chips, label of the drive, and its suspended FTL, if it could be suspended: with it the drive needs no
/// mount.
pub type Awake = (Nand, Vec<u8>, Option<Asleep>);

/// Mapping units of one write.
const STEP: u32 = 16;

/// Random writes of single units follow the computed steady state: one for each N units of the drive. They
/// remove its regularity, and take the space that is left to where the host waits for the collector, as a
/// host that writes without pause does.
const UNITS_PER_WARM_UP: u64 = 64;
/// Of a small drive the steady state is computed less exactly: that many overwrites, or writes.
const OVERWRITES: u64 = 16;
const WRITES: u64 = 1 << 16;

/// Mounts the flash software on flash that was switched off, without simulated time.
pub fn mounted(
    plan: &Plan,
    flash: &Flash,
    mut nand: Nand,
    label: Vec<u8>,
) -> Result<Awake, RunError> {
    nand.load_rows();
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, flash, nand.into(), false)?;
    let (software, keep) = (software(plan, flash, false), plan.medium.contents.keep);
    let drive = Drive::start(&rt, chips.clone(), software, keep, label);
    let worked = rt.block_on(async {
        let software = drive.software().await.map_err(MediumError::from)?;
        software.settle().await.map_err(MediumError::from)?;
        Ok::<_, MediumError>(software.clone())
    });
    suspended(&rt, worked?, drive, chips)
}

/// Preconditions new flash without simulated time. `Filled` writes through the FTL; `Scattered` and `Steady`
/// construct the state that random writes leave. Every block holds zeros, so that stamps do until the end:
/// every byte of a large drive would not fit in memory.
pub fn to(plan: &Plan, flash: &Flash, spec: Spec) -> Result<Awake, RunError> {
    let keep = Keep::Stamps;
    let nand = Nand::new(Spec { keep, ..spec }).map_err(MediumError::from)?;
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, flash, nand.into(), false)?;
    let software = software(plan, flash, false);
    let units = software.units;
    let drive = Drive::start(&rt, chips.clone(), software, keep, Vec::new());
    let unit_bytes = flash.spec.geometry.unit_bytes;
    let worked = rt.block_on(async {
        let zeros = vec![0; (STEP * unit_bytes) as usize];
        let blocks_of = |units: u32| units * (unit_bytes / drive.block_bytes());
        let write = async |unit: u32, count: u32| -> Result<(), MediaError> {
            let block = u64::from(unit) * u64::from(blocks_of(1));
            let bytes = (count * unit_bytes) as usize;
            drive.write(Extent { block, blocks: blocks_of(count) }, &zeros[..bytes]).await
        };
        if flash.start != Start::Filled {
            let software = drive.software().await.map_err(MediumError::from)?;
            software.lead(GcControl::Held);
            let seed = plan.run.seed;
            let laid = match (flash.start, &flash.steady_for) {
                (Start::Scattered, _) => software.precondition_scattered(seed).await,
                (Start::Striped { units }, _) => software.precondition_striped(units, seed).await,
                (_, Overwrites::Sequential) => software.precondition_sequential(seed).await,
                (_, Overwrites::Uniform) => software.precondition(warm_up(software), seed).await,
                (_, Overwrites::Skewed(_)) => software.precondition(0, seed).await,
            };
            laid.map_err(MediumError::from)?;
            if let Overwrites::Skewed(skew) = &flash.steady_for {
                overwrite(plan, software, skew, &zeros[..unit_bytes as usize]).await?;
            }
        } else {
            for unit in (0..units).step_by(STEP as usize) {
                write(unit, STEP.min(units - unit)).await.map_err(MediumError::from)?;
            }
        }
        let software = drive.software().await.map_err(MediumError::from)?;
        // A checkpoint, so that the mount after the first power cut does not scan every page.
        software.checkpoint().await.map_err(MediumError::from)?;
        software.settle().await.map_err(MediumError::from)?;
        // From now on, in the run: nothing of the collector happens here any more.
        software.lead(GcControl::Own);
        Ok::<_, RunError>(software.clone())
    });
    let (nand, label, asleep) = suspended(&rt, worked?, drive, chips)?;
    match plan.medium.contents.keep {
        Keep::Stamps => Ok((nand, label, asleep)),
        Keep::Everything => Ok((nand.keep_every_byte().map_err(MediumError::from)?, label, asleep)),
    }
}

fn warm_up(software: &Ftl<Chips>) -> u64 {
    let units = software.blocks() * u64::from(software.block_bytes()) / software.unit_bytes();
    let least = 2 * u64::from(software.superblock_units());
    (units / UNITS_PER_WARM_UP).max(least).max(WRITES.min(OVERWRITES * units))
}

/// Rounds of overwrites after which write amplification is compared with that of the rounds before: an
/// approach that becomes slower is seen over more of them.
const ROUNDS: [u32; 5] = [2, 4, 8, 16, 32];
/// Thousandths by which it may differ.
const CHANGE_PER_MILLE: u64 = 10;

/// Overwrites a drive in a skewed pattern until it is in the steady state of that.
async fn overwrite(
    plan: &Plan,
    software: &Ftl<Chips>,
    skew: &str,
    zeros: &[u8],
) -> Result<(), RunError> {
    let block_bytes = software.block_bytes();
    let text = format!(
        "[steady]\nrw=randwrite\nbs={}\nrandom_distribution={skew}\ntime_based=1\nruntime=1\n",
        zeros.len()
    );
    let expected = "\"uniform\", \"sequential\", or a random_distribution of a job";
    let refused = || CheckError::key(plan, "medium.flash.steady_for", expected);
    let work = Work::parse(Path::new("steady_for"), &text, Mapping::default());
    let job = work.ok().and_then(|mut work| work.jobs.pop()).ok_or_else(refused)?;
    let capacity_bytes = software.blocks() * u64::from(block_bytes);
    let target = Target { capacity_bytes, block_bytes };
    let mut places = Ops::new(&job, 0, plan.run.seed, target).map_err(|_| refused())?;
    let units = capacity_bytes / zeros.len() as u64;
    let round = units * WRITES.div_ceil(4 * units);
    let (mut done, mut before) = (0, software.stats().counters);
    let mut early = 0_u64;
    for rounds in ROUNDS {
        while done < rounds {
            done += 1;
            for op in places.by_ref().take(round as usize) {
                let block = op.offset_bytes / u64::from(block_bytes);
                software.write(block, zeros).await.map_err(MediumError::from)?;
            }
        }
        let now = software.stats().counters;
        let late = now.since(&before).write_amplification_per_mille().unwrap_or(0);
        if early.abs_diff(late) * 1000 <= CHANGE_PER_MILLE * early {
            break;
        }
        (early, before) = (late, now);
    }
    Ok(())
}

/// Takes a drive apart that has nothing in flight.
fn suspended(
    rt: &Rt,
    software: Ftl<Chips>,
    drive: Rc<Drive<Chips>>,
    chips: Rc<Chips>,
) -> Result<Awake, RunError> {
    rt.drop_tasks();
    let drive = Rc::try_unwrap(drive).ok().expect("its tasks are gone");
    let label = drive.into_label();
    let asleep = software.sleep();
    let chips = Rc::try_unwrap(chips).ok().expect("the drive is gone");
    Ok((chips.cut().into_nand(), label, asleep))
}
