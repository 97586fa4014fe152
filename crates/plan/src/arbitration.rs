//! The table `[arbitration]`: weighted round robin with an urgent class (NVMe base 2.0, 3.4.4.2). Without it
//! queues are served round robin.

use wire::nvme::admin::Priority;

use super::fields::{Fields, Source::Optional};

/// Priority classes by their name in a plan.
const CLASSES: [(&str, Priority); 4] = [
    ("urgent", Priority::Urgent),
    ("high", Priority::High),
    ("medium", Priority::Medium),
    ("low", Priority::Low),
];

/// Priority class of each queue, and the weights of the classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arbitration {
    /// Class of each I/O queue of the host; repeated if there are more queues than entries.
    pub classes: Vec<Priority>,
    /// Weights of the high, the medium and the low class: 1 to 256.
    pub weights: [u32; 3],
    /// Urgent commands fetched in a row while other classes wait; none: no limit.
    pub urgent_most: Option<u32>,
}

impl Arbitration {
    /// Class of an I/O queue; queues count from 0.
    pub fn class(&self, queue: usize) -> Priority {
        self.classes[queue % self.classes.len()]
    }
}

pub(super) fn read(fields: Fields<'_>) -> Option<Arbitration> {
    let expected =
        "the classes of the queues in order: urgent, high, medium or low, separated by blanks";
    let classes = fields.text("classes", expected).and_then(|text| {
        let class = |word: &str| CLASSES.iter().find(|(known, _)| *known == word);
        let classes: Option<Vec<_>> =
            text.split_whitespace().map(|word| class(word).map(|(_, class)| *class)).collect();
        if classes.is_none() {
            fields.error("classes", format!("{text:?}"), expected);
        }
        classes
    });
    let weight = |key| fields.number(key, Optional, 1..=256).map(|weight| weight as u32);
    let (high, medium, low) = (weight("high"), weight("medium"), weight("low"));
    let urgent_most = fields.given("urgent_most", |key| fields.number(key, Optional, 1..=65_536));
    fields.done();
    let urgent_most = urgent_most?.map(|most| most as u32);
    Some(Arbitration { classes: classes?, weights: [high?, medium?, low?], urgent_most })
}
