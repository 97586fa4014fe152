//! Documents of results: this program, and the machine of live runs.

use std::time::{SystemTime, UNIX_EPOCH};

use report::model::{Command, Document, Machine, Program, Run, SCHEMA, SCHEMA_VERSION, World};

/// The document of these runs, without findings of other commands. With time and machine if a run is live.
pub fn of_runs(command: Command, runs: Vec<Run>) -> Document {
    let live = runs.iter().any(|run| run.world == World::Live);
    let document = document(command, runs);
    if live { measured(document) } else { document }
}

/// Name and version of the program, as results have them.
pub fn program() -> Program {
    Program { name: "doorbell".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// An answer to a command of which all is simulated: the same on any machine, at any time.
pub fn document(command: Command, runs: Vec<Run>) -> Document {
    Document {
        schema: SCHEMA.to_owned(),
        schema_version: SCHEMA_VERSION,
        program: program(),
        command,
        machine: None,
        unix_ms: 0,
        warnings: Vec::new(),
        runs,
        plans: Vec::new(),
        papers: Vec::new(),
        conformance: Vec::new(),
        diskhog: Vec::new(),
        bench: None,
        calibration: None,
    }
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |time| time.as_millis() as u64)
}

/// The document with time and machine.
pub fn measured(document: Document) -> Document {
    let unix_ms = unix_ms();
    Document { unix_ms, machine: Some(machine()), ..document }
}

fn machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let line = |path: &str| read(path).trim().to_owned();
    let kernel = line("/proc/sys/kernel/ostype");
    let kernel = if kernel.is_empty() { std::env::consts::OS.to_owned() } else { kernel };
    let system =
        format!("{kernel} {} {}", line("/proc/sys/kernel/osrelease"), std::env::consts::ARCH);
    let field = |path: &str, name: &str| {
        let text = read(path);
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let memory = field("/proc/meminfo", "MemTotal");
    let kib = memory.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    Machine {
        system: system.split_whitespace().collect::<Vec<_>>().join(" "),
        processor: field("/proc/cpuinfo", "model name").unwrap_or_default(),
        cores: std::thread::available_parallelism().map_or(0, |cores| cores.get() as u32),
        memory_bytes: kib.unwrap_or(0) * 1024,
    }
}
