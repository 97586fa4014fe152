//! The table `[arbitration]`: weighted round robin with an urgent class (NVMe base 2.0, 3.4.4.2). Without it
//! queues are served round robin.

use wire::nvme::admin::Priority;

use super::fields::{Fields, Source::Welcome};

/// The words for the classes.
const CLASSES: [(&str, Priority); 4] = [
    ("urgent", Priority::Urgent),
    ("high", Priority::High),
    ("medium", Priority::Medium),
    ("low", Priority::Low),
];

/// Which queue is of which class, and what the classes weigh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arbitration {
    /// The classes of the host's queues, in turn.
    pub classes: Vec<Priority>,
    /// Weights of the high, the medium and the low class: 1 to 256.
    pub weights: [u32; 3],
    /// Urgent commands that may go while others wait, before one of those does; none: all.
    pub urgent_most: Option<u32>,
}

impl Arbitration {
    /// The class of a queue, by its number from 0.
    pub fn class(&self, queue: usize) -> Priority {
        self.classes[queue % self.classes.len()]
    }
}

pub(super) fn read(fields: Fields<'_>) -> Option<Arbitration> {
    let expected =
        "the classes of the queues, in turn: urgent, high, medium or low, with blanks between";
    let classes = fields.text("classes", expected).and_then(|text| {
        let class = |word: &str| CLASSES.iter().find(|(known, _)| *known == word);
        let classes: Option<Vec<_>> =
            text.split_whitespace().map(|word| class(word).map(|(_, class)| *class)).collect();
        if classes.is_none() {
            fields.error("classes", format!("{text:?}"), expected);
        }
        classes
    });
    let weight = |key| fields.number(key, Welcome, 1..=256).map(|weight| weight as u32);
    let (high, medium, low) = (weight("high"), weight("medium"), weight("low"));
    let bounded = fields.has("urgent_most");
    let urgent_most =
        if bounded { fields.number("urgent_most", Welcome, 1..=65_536) } else { Some(0) };
    fields.done();
    let urgent_most = Some(urgent_most? as u32).filter(|most| *most > 0);
    Some(Arbitration { classes: classes?, weights: [high?, medium?, low?], urgent_most })
}
