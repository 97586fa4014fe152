//! The table `[array]`: several devices below one switch, which the host combines into one array. It is
//! optional: without it the machine has one device and no switch.

use bus::sim::NamedCost;
use bus::switch::SwitchSpec;
use ftl::policy::Window;
use runtime::Span;

use super::Plan;
use super::fields::{Fields, Source::Optional};
use super::host::costs;
use super::link::LANES;

/// Cost of an array on a host core: XOR of 512 bytes into a parity chunk.
const COSTS: &[&str] = &["parity"];

/// Garbage collection policy across the members, if the host controls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collections {
    /// Each member collects when it runs out of space.
    Free,
    /// One member at a time collects ahead of need. Another one starts only if its writes would stall.
    InTurn,
    /// All members collect as soon as one must.
    Together,
    /// Each member collects ahead of need in a window of time of its own, of this length, one after the
    /// other.
    Windows(Span),
}

#[derive(Clone, Debug)]
pub struct Array {
    pub devices: u32,
    /// One chunk of each stripe holds the parity of the others.
    pub parity: bool,
    /// Chunk size in bytes.
    pub chunk_bytes: u32,
    /// Lanes of the link above the switch. Its generation is that of the links below.
    pub lanes: u8,
    /// Coordination of the members' garbage collection.
    pub collections: Collections,
    /// Superblocks' worth of space by which a member collects early in its windows.
    pub early: u32,
    /// Number of the member that a plan of one is of.
    pub member: u32,
    /// A member that is missing from the start: the array runs degraded.
    pub out: Option<u32>,
    /// Entries of the journal that closes the write hole; none: no journal.
    pub journal: Option<u32>,
    pub costs: Vec<NamedCost>,
}

impl Array {
    /// Windows of this plan's member, if members collect in windows.
    pub fn window(&self) -> Option<Window> {
        let Collections::Windows(length) = self.collections else { return None };
        let (begin, cycle) = (length * u64::from(self.member), length * u64::from(self.devices));
        Some(Window { begin, length, cycle, early: self.early })
    }

    /// The link above the switch; the links below it are the plan's.
    pub fn above(&self, plan: &Plan) -> SwitchSpec {
        SwitchSpec { generation: plan.link.generation, lanes: self.lanes }
    }
}

/// Upper limit of `array.journal`, in entries.
const JOURNAL_MAX: u64 = 1024;

/// Parses the table. `block_bytes` is none if the block size is invalid.
pub(super) fn read(fields: Fields<'_>, block_bytes: Option<u64>) -> Option<Array> {
    let devices = fields.number("devices", Optional, 1..=array::MEMBERS_MAX as u64);
    let parity = fields.choice("layout", &[("striped", false), ("parity", true)]);
    let block = block_bytes.unwrap_or(512);
    let sized = |bytes: u64| bytes.is_multiple_of(block) && (512..=1 << 24).contains(&bytes);
    let chunk = fields.size("chunk", Optional, sized, "whole blocks, up to \"16 MiB\"");
    let known = |n| LANES.contains(&n);
    let lanes = fields.number_where("lanes", Optional, known, "1, 2, 4, 8, 16 or 32 lanes");
    let modes = [
        ("free", Collections::Free),
        ("in turn", Collections::InTurn),
        ("together", Collections::Together),
        ("windows", Collections::Windows(Span::ZERO)),
    ];
    let mut collections = fields.choice("collections", &modes);
    let has_window = fields.has("window");
    let mut early = Some(1);
    match &mut collections {
        Some(Collections::Windows(length)) => {
            let span = fields.span("window", Optional, Span::us(10)..=Span::ms(60_000));
            match span {
                Some(span) => *length = span,
                None => collections = None,
            }
            early = fields.number_or("early", 1, 1..=64);
        }
        Some(_) if has_window => {
            fields.error("window", "a span", "none: array.collections is not windows");
        }
        _ => {}
    }
    let most = devices.unwrap_or(1).saturating_sub(1);
    let out = fields.given("out", |key| fields.number(key, Optional, 0..=most));
    let journal = fields.given("journal", |key| fields.number(key, Optional, 1..=JOURNAL_MAX));
    let costs = costs(&fields, COSTS);
    if parity == Some(true) && devices.is_some_and(|devices| devices < 3) {
        let found = devices.unwrap_or(0).to_string();
        fields.error("devices", found, "at least 3: array.layout is parity");
    }
    if fields.has("out") && parity == Some(false) {
        fields.error("out", "a member", "none: array.layout is striped, without redundancy");
    }
    if fields.has("journal") && parity == Some(false) {
        fields.error("journal", "one", "none: array.layout is striped, without a write hole");
    }
    fields.done();
    Some(Array {
        devices: devices? as u32,
        parity: parity?,
        chunk_bytes: chunk? as u32,
        lanes: lanes? as u8,
        collections: collections?,
        early: early? as u32,
        member: 0,
        out: out?.map(|out| out as u32),
        journal: journal?.map(|journal| journal as u32),
        costs: costs?,
    })
}

#[cfg(test)]
mod tests {
    use runtime::Time;

    use super::*;

    const GOOD: &str = "{ devices = 4, layout = \"parity\", chunk = \"8 KiB\", lanes = 4, \
        collections = \"in turn\", costs = { parity = \"30 ns\" }, out = 3, journal = 16 }";

    fn open(table: &str) -> Result<Plan, String> {
        Plan::open("small-flash", &[("array", table)]).map_err(|errors| errors.to_string())
    }

    #[test]
    fn array_table_parses() {
        let array = open(GOOD).expect("a plan").array.expect("an array");
        assert_eq!((array.devices, array.parity, array.chunk_bytes), (4, true, 8192));
        assert_eq!((array.lanes, array.collections), (4, Collections::InTurn));
        assert_eq!((array.out, array.journal), (Some(3), Some(16)));
    }

    #[test]
    fn windows_of_members_take_turns_and_leave_no_gap() {
        let table = GOOD.replace("\"in turn\"", "\"windows\", window = \"2 ms\", early = 3");
        let mut array = open(&table).expect("a plan").array.expect("an array");
        for us in (0..40_000).step_by(250) {
            let now = Time::ZERO + Span::us(us);
            let open: Vec<_> = (0..4)
                .filter(|member| {
                    array.member = *member;
                    let window = array.window().expect("windows");
                    assert_eq!(window.early, 3);
                    let (is_open, until) = window.at(now);
                    assert!(until > now && window.at(until).0 != is_open, "at {us} us");
                    is_open
                })
                .collect();
            assert_eq!(open, [us as u32 / 2000 % 4], "at {us} us");
        }
    }

    #[test]
    fn array_table_rejects_invalid_values() {
        for (with, replacement, expected) in [
            (
                "devices = 4",
                "devices = 2",
                "array.devices: found 2, expected at least 3: array.layout is parity",
            ),
            (
                "devices = 4",
                "devices = 17",
                "array.devices: found 17, expected a whole number from 1 to 16",
            ),
            (
                "parity\"",
                "striped\"",
                "array.out: found a member, expected none: array.layout is striped, without \
                redundancy",
            ),
            (
                "parity\"",
                "striped\"",
                "array.journal: found one, expected none: array.layout is striped, without a \
                write hole",
            ),
            (
                "journal = 16",
                "journal = 0",
                "array.journal: found 0, expected a whole number from 1 to 1024",
            ),
            ("out = 3", "out = 4", "array.out: found 4, expected a whole number from 0 to 3"),
            (
                "8 KiB",
                "700 B",
                "array.chunk: found \"700 B\", expected whole blocks, up to \"16 MiB\"",
            ),
            (
                "in turn",
                "never",
                "array.collections: found \"never\", expected \"free\" or \"in turn\" or \
                \"together\" or \"windows\"",
            ),
            ("in turn", "windows", "array.window"),
            ("out = 3", "window = \"1 ms\"", "array.window: found a span, expected none"),
            ("lanes = 4", "lanes = 3", "array.lanes: found 3, expected 1, 2, 4, 8, 16 or 32 lanes"),
        ] {
            let errors = open(&GOOD.replacen(with, replacement, 1)).expect_err(replacement);
            assert!(errors.contains(expected), "{errors}");
        }
    }
}
