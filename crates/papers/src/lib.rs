//! Published figures, and their comparison with this model.
//!
//! Each row names its criterion: P, within a tenth of the paper's number or below its bound; S, by its shape,
//! with the magnitude only printed. For each row, assumed costs are varied by half, up and down, to show its
//! sensitivity to them. The remainder is printed as unexplained. Tables are printed without a verdict:
//! figures, breakdowns, comparisons.

mod adaptive;
mod blocks;
mod dc_express;
mod fastpath;
mod flash_arrays;
mod flash_cliff;
mod flash_closer;
mod flash_ssds;
mod measure;
mod plot;
mod threads;
mod vortex;

use std::fmt;

use world::RunError;

/// A paper and its exhibits.
pub struct Paper {
    /// Name on the command line.
    pub name: &'static str,
    pub title: &'static str,
    pub authors: &'static str,
    pub exhibits: Exhibits,
    /// Additional exhibits, which take minutes, shown if the paper is requested by name.
    pub long: Option<Exhibits>,
}

pub type Exhibits = fn() -> Result<Vec<Exhibit>, RunError>;

pub use plot::{Plot, Series};

pub enum Exhibit {
    /// A number with a verdict.
    Row(Row),
    /// A shape with a verdict.
    Claim(Claim),
    Table(Table),
    Plot(Plot),
    /// A row or a claim of a paper that this model is known not to reproduce, with the known reason. If it
    /// holds one day, the check fails: it must then become a row or a claim.
    Departure(Box<Exhibit>, &'static str),
}

impl Exhibit {
    /// Returns true if the verdict is as expected; always true for exhibits without a verdict.
    pub fn holds(&self) -> bool {
        match self {
            Exhibit::Row(row) => row.holds(),
            Exhibit::Claim(claim) => claim.holds,
            Exhibit::Table(_) | Exhibit::Plot(_) => true,
            Exhibit::Departure(exhibit, _) => !exhibit.holds(),
        }
    }
}

/// A shape that a paper shows in a figure without numbers, with one number of this model.
pub struct Claim {
    pub what: &'static str,
    pub shape: String,
    pub holds: bool,
    pub number: &'static str,
    /// The number in this model; the paper gives none.
    pub ours: f64,
    /// Assumed costs, and the number with each at half and at one and a half.
    pub assumed: Vec<(String, f64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validated {
    /// Within this many thousandths of the paper's number.
    Within(u64),
    /// Below the paper's number, which is a bound.
    Below,
    /// By shape; true if it holds.
    Shape(bool),
}

pub struct Row {
    pub what: &'static str,
    /// Unit of measurement.
    pub unit: &'static str,
    pub paper: f64,
    /// The number in this model.
    pub ours: f64,
    pub validated: Validated,
    /// Description of the shape, if that is the criterion.
    pub shape: &'static str,
    pub parts: Vec<(&'static str, f64)>,
    /// Assumed costs, and the row with each at half and at one and a half.
    pub assumed: Vec<(String, f64, f64)>,
}

/// A figure or a table of a paper, computed by this model.
pub struct Table {
    pub what: String,
    pub columns: Vec<String>,
    /// Lines of as many cells as there are columns.
    pub lines: Vec<Vec<String>>,
    pub notes: Vec<String>,
}

impl Row {
    /// Returns true if the row meets its criterion.
    pub fn holds(&self) -> bool {
        match self.validated {
            Validated::Within(thousandths) => {
                (self.ours - self.paper).abs() * 1000.0 <= self.paper * thousandths as f64
            }
            Validated::Below => self.ours < self.paper,
            Validated::Shape(holds) => holds,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds() { "holds" } else { "DOES NOT HOLD" };
        let rule = match self.validated {
            Validated::Within(thousandths) => {
                format!("P, within {}.{} %", thousandths / 10, thousandths % 10)
            }
            Validated::Below => "P, below the paper's bound".to_owned(),
            Validated::Shape(_) => format!("S: {}", self.shape),
        };
        let unit = self.unit;
        writeln!(f, "{}\n  {rule}: {verdict}", self.what)?;
        writeln!(f, "    {:<28} {:>10.3} {unit}", "the paper", self.paper)?;
        writeln!(f, "    {:<28} {:>10.3} {unit}", "ours", self.ours)?;
        for (stage, value) in self.parts.iter().filter(|(_, value)| *value > 0.0) {
            writeln!(f, "      {stage:<26} {value:>10.3} {unit}")?;
        }
        if self.validated != Validated::Below {
            writeln!(f, "    {:<28} {:>10.3} {unit}", "unexplained", self.paper - self.ours)?;
        }
        if !self.assumed.is_empty() {
            writeln!(f, "    assumed costs, and the row with each at half and at one and a half:")?;
        }
        for (key, low, high) in &self.assumed {
            writeln!(f, "      {key:<34} {low:>10.3} {high:>10.3} {unit}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        let width = |column: usize| {
            let cells = self.lines.iter().map(|line| line[column].chars().count());
            cells.chain([self.columns[column].chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.columns.len()).map(width).collect();
        for line in std::iter::once(&self.columns).chain(&self.lines) {
            write!(f, "   ")?;
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, " {cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "    {note}"))
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.holds { "holds" } else { "DOES NOT HOLD" };
        writeln!(f, "{}\n  S: {}: {verdict}", self.what, self.shape)?;
        writeln!(f, "    ours alone: {:<42} {:>9.3}", self.number, self.ours)?;
        let moves = |(_, low, high): &&(String, f64, f64)| {
            [low, high].iter().any(|value| (*value - self.ours).abs() > 0.005 * self.ours.abs())
        };
        let (moving, still): (Vec<_>, Vec<_>) = self.assumed.iter().partition(moves);
        if !moving.is_empty() {
            writeln!(
                f,
                "    assumed costs, and that number with each at half and at one and a half:"
            )?;
        }
        for (key, low, high) in moving {
            writeln!(f, "      {key:<34} {low:>10.3} {high:>10.3}")?;
        }
        if !still.is_empty() {
            writeln!(
                f,
                "      {} other assumed costs move it by less than half a percent",
                still.len()
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Exhibit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exhibit::Row(row) => row.fmt(f),
            Exhibit::Claim(claim) => claim.fmt(f),
            Exhibit::Table(table) => table.fmt(f),
            Exhibit::Plot(plot) => plot.fmt(f),
            Exhibit::Departure(exhibit, why) => {
                write!(f, "{exhibit}")?;
                match exhibit.holds() {
                    true => writeln!(f, "    IT IS LISTED AS ONE THAT DOES NOT HOLD"),
                    false => writeln!(f, "    {why}"),
                }
            }
        }
    }
}

/// Exhibits that overwrite drives and arrays several times.
fn flash_in_minutes() -> Result<Vec<Exhibit>, RunError> {
    let mut exhibits = flash_cliff::exhibits()?;
    exhibits.extend(flash_arrays::exhibits()?);
    Ok(exhibits)
}

pub fn all() -> &'static [Paper] {
    &[
        Paper {
            name: "adaptive",
            title: "Prototyping and Performance Evaluation of a Dynamically Adaptable Block Device Driver \
                for PCIe-based SSDs (RSP 2014)",
            authors: "Bougioukou, Ntalla, Palli, Varsamou, Antonakopoulos",
            exhibits: adaptive::exhibits,
            long: None,
        },
        Paper {
            name: "dc-express",
            title: "DC Express: Shortest Latency Protocol for Reading Phase Change Memory over PCI \
                Express (FAST 2014)",
            authors: "Vucinic, Wang, Guyot, Mateescu, Blagojevic, Franca-Neto, Le Moal, Bunker, Xu, \
                  Swanson, Bandic",
            exhibits: dc_express::exhibits,
            long: None,
        },
        Paper {
            name: "fastpath",
            title: "FastPath: Towards Wire-speed NVMe SSDs (preprint, 2018)",
            authors: "Stratikopoulos, Kotselidis, Goodacre, Lujan",
            exhibits: fastpath::exhibits,
            long: None,
        },
        Paper {
            name: "flash-closer",
            title: "Challenges in Getting Flash Drives Closer to CPU (HotStorage 2013)",
            authors: "Jung, Kandemir",
            exhibits: flash_closer::exhibits,
            long: Some(flash_in_minutes),
        },
        Paper {
            name: "vortex",
            title: "Improving Disk Performance in Vortex With NVMe (master's thesis, 2015)",
            authors: "Elsebø",
            exhibits: vortex::exhibits,
            long: None,
        },
    ]
}
