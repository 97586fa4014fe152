//! The skewed distributions of `random_distribution=`, with the parameters of fio's manual.

use std::str::FromStr;

use super::{Decimal, ValueError};

/// A skewed distribution. `centre` is the place of the most frequent rank, as a part of the region from 0
/// to 1; without one, zipf and pareto scatter the ranks, and normal has its peak in the middle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skew {
    /// Rank `k` is drawn in proportion to `k^-theta`.
    Zipf { theta: Decimal, centre: Option<Decimal> },
    /// A part `h` of the places gets `1 - h` of the accesses, and so does each part in itself.
    Pareto { h: Decimal, centre: Option<Decimal> },
    /// Standard deviation, in percent of the region.
    Normal { percent: Decimal, centre: Option<Decimal> },
}

impl FromStr for Skew {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Skew, ValueError> {
        let mut parts = text.split(':').map(str::trim);
        let (model, parameter, centre) = (parts.next().unwrap_or(""), parts.next(), parts.next());
        if parts.next().is_some() {
            return Err(ValueError::SkewNumbers { text: text.to_owned() });
        }
        let decimal = |name, text: Option<&str>, default, low: &str, high: &str| {
            let found: Decimal = text.unwrap_or(default).parse()?;
            let (low, high): (Decimal, Decimal) = (low.parse()?, high.parse()?);
            match (low..=high).contains(&found) {
                true => Ok(found),
                false => Err(ValueError::Parameter { name, found, low, high }),
            }
        };
        let centre =
            centre.map(|text| decimal("the centre", Some(text), "", "0", "1")).transpose()?;
        match model {
            "zipf" => match decimal("theta", parameter, "1.1", "0.000001", "100")? {
                theta if theta == Decimal::ONE => {
                    Err(ValueError::NotSupported("theta is 1, for which fio has no zipf"))
                }
                theta => Ok(Skew::Zipf { theta, centre }),
            },
            "pareto" => {
                let h = decimal("the power", parameter, "0.2", "0.000001", "0.999999")?;
                Ok(Skew::Pareto { h, centre })
            }
            "normal" => {
                let percent = decimal("the deviation", parameter, "0", "0", "100")?;
                Ok(Skew::Normal { percent, centre })
            }
            other => Err(ValueError::Unknown { text: other.to_owned(), kind: "distribution" }),
        }
    }
}
