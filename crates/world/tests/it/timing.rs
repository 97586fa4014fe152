//! Timing diagrams drawn from event logs: figure 1 of Vučinić et al., "DC Express" (FAST 2014), in
//! docs/dc-express.md; figure 3 of Bougioukou et al. (RSP 2014) in docs/descriptor-blocks.md. The committed
//! pages equal this build's diagrams; `DOORBELL_BLESS=1` redraws them.

use std::fmt::Write as _;
use std::path::Path;

use plan::Plan;
use runtime::Log;
use workload::trace::Mapping;
use world::interfaces::{BLOCK, DCX, NVME, Row};
use world::work::Work;
use world::{Options, simulate};

/// Event log of reads on a plan, from occurrence `from` of event `begin`: nanoseconds since it, component and
/// event, two numbers.
fn logged(
    row: &'static Row,
    plan: &str,
    sets: &[(&str, &str)],
    (bytes, depth): (u32, u32),
    begin: &str,
    from: usize,
) -> Vec<(f64, String, u64, u64)> {
    let plan = Plan::open(plan, sets).unwrap_or_else(|errors| panic!("{errors}"));
    let job = format!("[a]\nrw=read\nbs={bytes}\niodepth={depth}\nsize=1m\nnumber_ios=200\n");
    let work = Work::parse(Path::new("timing"), &job, Mapping::default()).expect("a job");
    let log = Log::kept();
    let options = Options { log: log.clone(), ..Options::default() };
    let run_result = simulate(row, &plan, &work, options).expect("a run");
    assert_eq!(run_result.jobs[0].1.errors(), 0);
    let entries = log.entries();
    let name = |entry: &runtime::Entry| format!("{} {}", entry.component, entry.what);
    let mut starts = entries.iter().enumerate().filter(|(_, entry)| name(entry) == begin);
    let (first, start) = starts.nth(from).expect("enough reads");
    let since = |at: runtime::Time| at.since(start.at).as_us_f64() * 1e3;
    entries[first..].iter().map(|entry| (since(entry.at), name(entry), entry.a, entry.b)).collect()
}

/// One line of a diagram: host, link, device.
fn line(what: &str, a: u64, b: u64) -> Option<[String; 3]> {
    let [host, between, device] = match what {
        "host stores" => ["stores the command".into(), String::new(), String::new()],
        "host arrived" => {
            ["no tag is left: the data are there".into(), String::new(), String::new()]
        }
        "device asks" => [String::new(), "◄─── fetch".into(), String::new()],
        "device nothing new" => [String::new(), "───► entry".into(), "nothing new".into()],
        "device fetched" => [String::new(), "───► entry".into(), "a command: parses it".into()],
        "device sends" => [String::new(), "◄═══ data".into(), format!("{b} bytes")],
        "bus memory" => [format!("bytes land at {a:#x}"), String::new(), String::new()],
        "bus register" => [String::new(), "───► doorbell".into(), String::new()],
        "host announces" => [format!("announces {b}"), String::new(), String::new()],
        "host answers" => ["answers the oldest".into(), String::new(), String::new()],
        "device block" => [String::new(), "───► block".into(), format!("fetches {b} commands")],
        "device ended" => [String::new(), String::new(), "a command has ended".into()],
        "device returns" => [String::new(), "◄─── block".into(), format!("returns {b}")],
        "device completed" => [String::new(), "◄─── entry".into(), "posts the completion".into()],
        _ => return None,
    };
    Some([host, between, device])
}

fn draw(
    row: &'static Row,
    plan: &str,
    sets: &[(&str, &str)],
    reads: (u32, u32),
    (begin, from): (&str, usize),
    (end, ends): (&str, usize),
) -> String {
    let mut text = format!("{:>8}  {:<36}{:<16}{}\n", "ns", "host", "link", "device");
    let mut left = ends;
    for (ns, what, a, b) in logged(row, plan, sets, reads, begin, from) {
        if let Some([host, between, device]) = line(&what, a, b) {
            let row = format!("{ns:>8.0}  {host:<36}{between:<16}{device}");
            writeln!(text, "{}", row.trim_end()).expect("a text");
        }
        if what == end {
            left -= 1;
            if left == 0 {
                return text;
            }
        }
    }
    panic!("the log ends before {ends} lines of {end:?}")
}

type Figures = Vec<(&'static str, String)>;

fn dc_express() -> Figures {
    let out_of_order = [
        ("link.relaxed_ordering", "true"),
        (
            "link.held_up",
            "{ one_in = { value = 3, source = \"assumed\" }, span = { value = \"400 ns\", source = \"assumed\" } }",
        ),
    ];
    let (stores, arrived) = ("host stores", "host arrived");
    vec![
        ("1a", draw(NVME, "dc-express", &[], (512, 1), ("bus register", 120), ("bus memory", 2))),
        ("1b", draw(DCX, "dc-express", &[], (512, 1), (stores, 100), (arrived, 2))),
        ("1c", draw(DCX, "dc-express", &[], (4096, 2), (stores, 100), (arrived, 2))),
        ("1d", draw(DCX, "dc-express", &out_of_order, (512, 1), (stores, 110), (arrived, 1))),
    ]
}

fn descriptor_blocks() -> Figures {
    let three = |sets: &[(&str, &str)]| {
        let sets: Vec<_> = sets.iter().chain(&STATIC).copied().collect();
        let log = ("host announces", 20);
        draw(BLOCK, "descriptor-blocks", &sets, (4096, 6), log, ("host announces", 2))
    };
    vec![
        ("3", three(&[])),
        ("3, each", three(&[("block.returned", "each"), ("block.engines", "2")])),
    ]
}

/// Blocks of three commands.
const STATIC: [(&str, &str); 3] =
    [("block.sizing", "static"), ("block.static_size", "3"), ("block.linger", "1 ms")];

#[test]
fn timing_diagrams_match_event_logs() {
    for (page, figures) in
        [("dc-express.md", dc_express()), ("descriptor-blocks.md", descriptor_blocks())]
    {
        compare(page, figures);
    }
}

fn compare(page: &str, figures: Figures) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let found = std::fs::read_to_string(&path).expect("a page");
    let mut text = found.clone();
    for (name, diagram) in figures {
        let (open, close) = (format!("<!-- figure {name} -->\n```text\n"), "```\n");
        let (before, rest) = text.split_once(&open).expect("the mark of a diagram");
        let (_, after) = rest.split_once(close).expect("the end of a diagram");
        text = format!("{before}{open}{diagram}{close}{after}");
    }
    if std::env::var_os("DOORBELL_BLESS").is_some() {
        std::fs::write(&path, text).expect("a page that can be written");
        return;
    }
    for (number, (is, must)) in (1..).zip(found.lines().zip(text.lines())) {
        assert_eq!(is, must, "docs/{page}:{number}; DOORBELL_BLESS=1 draws it anew");
    }
    assert_eq!(found.lines().count(), text.lines().count());
}
