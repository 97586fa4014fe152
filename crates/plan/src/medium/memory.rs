//! DRAM and PCM: memory in banks, with the table `[medium.timing]`.

use std::fmt;
use std::rc::Rc;

use media::{Banked, Blocks, Contents, Pace, Timing};
use runtime::{Rt, Span};

use super::{Common, MediumKind, MediumPace, Missing, Model, Parts};
use crate::declared;
use crate::fields::Fields;
use crate::report::line;
use crate::units::{rate_text, size_text, span_text};

pub(super) static DRAM: MediumKind =
    MediumKind { name: "dram", title: "DRAM", technology: 1, has_metadata: true, read };

pub(super) static PCM: MediumKind = MediumKind { name: "pcm", title: "PCM", technology: 2, ..DRAM };

/// Memory; without timing if its plan is only for a live world.
#[derive(Debug)]
struct Memory(Option<Timing>);

impl Model for Memory {
    fn report(&self, out: &mut String) -> fmt::Result {
        let Some(timing) = &self.0 else { return Ok(()) };
        let (channels, banks) = (timing.channels, timing.banks);
        let row = size_text(timing.row_bytes.into());
        let rate = rate_text(timing.bytes_per_s);
        line(out, "channels", format_args!("{channels} of {banks} banks, {rate} each"))?;
        line(out, "row", format_args!("{row}, {}", span_text(timing.first_byte)))?;
        line(out, "write", format_args!("{} times a read", timing.write_factor))?;
        declared::report(out, Timing::KEYS, timing)
    }

    fn first_of_4k(&self) -> Option<Span> {
        let timing = self.0.as_ref()?;
        let rows = 4096_u64.div_ceil(u64::from(timing.row_bytes));
        let used = rows.min(u64::from(timing.channels));
        Some(timing.first_byte + timing.next_row * (rows - 1).div_ceil(used))
    }

    fn timing(&self) -> Option<&Timing> {
        self.0.as_ref()
    }

    fn start(&self, rt: &Rt, contents: Contents, modelled: bool) -> Result<Blocks, Missing> {
        let pace = match (modelled, &self.0) {
            (false, _) => Pace::Immediate,
            (true, Some(timing)) => Pace::Modelled(timing.clone()),
            (true, None) => return Err(NO_TIMING),
        };
        Ok(Blocks::Banked(Rc::new(Banked::new(rt, contents, pace))))
    }
}

const NO_TIMING: Missing = Missing {
    key: "medium.timing",
    expected: "the table [medium.timing]: a simulated medium takes the time of its model, regardless \
               of medium.pace",
};

fn read(fields: &Fields<'_>, common: &Common) -> Option<Parts> {
    common.with_model(fields, |_| {
        if fields.has("timing") {
            return fields.table("timing").and_then(timing).map(|timing| Memory(Some(timing)));
        }
        if common.pace == Some(MediumPace::Modelled) {
            let expected = "the table [medium.timing], since medium.pace is \"modelled\"";
            fields.error("timing", "nothing", expected);
            return None;
        }
        Some(Memory(None))
    })
}

fn timing(fields: Fields<'_>) -> Option<Timing> {
    let timing = fields.declared(Timing::KEYS);
    fields.done();
    timing
}

#[cfg(test)]
mod tests {
    use crate::Plan;
    use media::contents::{Contents, Spec};
    use media::{Blocks, Media};
    use runtime::{Log, Rt};

    fn immediate(name: &str, modelled: bool) -> bool {
        let rt = Rt::simulated(None, Log::Off);
        let plan = Plan::open(name, &[]).expect("a plan");
        let spec = Spec { capacity_bytes: 4096, ..plan.medium.contents.clone() };
        let contents = Contents::new(spec).expect("contents in memory");
        let medium = plan.start_blocks(&rt, contents, modelled).expect("a plan with times");
        assert!(matches!(medium, Blocks::Banked(_)));
        medium.is_immediate()
    }

    #[test]
    fn memory_has_delays_only_if_modelled() {
        for name in ["live", "gen4", "dc-express"] {
            assert!(!immediate(name, true), "{name}");
            assert!(immediate(name, false), "{name}");
        }
    }
}
