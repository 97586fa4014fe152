//! The points of a sweep: which value of each axis a point has.

use std::path::Path;

use runtime::Rng;

use super::axis::{Axis, AxisOf, Draws, Target};
use super::error::SweepError;
use super::file::{FileText, Method};

/// Most points of a sweep.
pub const POINTS_MAX: u64 = 100_000;

pub(super) struct Space {
    pub axes: Vec<Axis>,
    pub points: u64,
    /// Of drawn points: the value of each axis; otherwise they follow from the number.
    drawn: Option<Vec<Vec<u32>>>,
    is_list: bool,
}

impl Space {
    /// # Errors
    /// An axis is wrong, the axes of a list differ in length, or there are too many points.
    pub fn new(path: &Path, text: &FileText) -> Result<Space, SweepError> {
        let key = |key, found: String, expected: &str| {
            let (path, expected) = (path.to_owned(), expected.to_owned());
            SweepError::Key { path, key, found, expected }
        };
        let drawn = match (text.method.is_drawn(), text.points) {
            (true, Some(points)) if (1..=POINTS_MAX).contains(&points) => Some(points),
            (true, points) => {
                let found = points.map_or("nothing".to_owned(), |points| points.to_string());
                let expected = format!("the number of points, from 1 to {POINTS_MAX}");
                return Err(key("points", found, &expected));
            }
            (false, Some(points)) => {
                let expected = "none: the axes give the points of a grid or a list";
                return Err(key("points", points.to_string(), expected));
            }
            (false, None) => None,
        };
        let seed = text.draw_seed.unwrap_or(1);
        let mut space = Space { axes: Vec::new(), points: 1, drawn: None, is_list: false };
        let mut table: Vec<Vec<u32>> = Vec::new();
        for (at, axis) in text.axis.iter().enumerate() {
            let of = AxisOf { path, number: at + 1, text: axis };
            match drawn {
                None => space.axes.push(of.build(None)?),
                Some(points) => {
                    let (axis, places) = draw(&of, text.method, points as usize, seed)?;
                    space.axes.push(axis);
                    table.push(places);
                }
            }
        }
        space.axes_are_distinct(path)?;
        let lengths = space.axes.iter().map(|axis| axis.values.len() as u64);
        let total = lengths.clone().try_fold(1_u64, u64::checked_mul);
        space.points = match (text.method, drawn) {
            (Method::List, _) => space.length_of_list(path)?,
            (_, Some(points)) => points,
            _ => total.filter(|points| *points <= POINTS_MAX).ok_or_else(|| {
                let lengths: Vec<String> = lengths.map(|length| length.to_string()).collect();
                let expected = format!("a product of at most {POINTS_MAX} points");
                key("axis", lengths.join(" x "), &expected)
            })?,
        };
        space.is_list = text.method == Method::List;
        space.drawn = drawn.map(|_| table);
        Ok(space)
    }

    fn axes_are_distinct(&self, path: &Path) -> Result<(), SweepError> {
        for (at, axis) in self.axes.iter().enumerate() {
            if self.axes[..at].iter().any(|other| other.name == axis.name) {
                return Err(SweepError::Axis {
                    path: path.to_owned(),
                    axis: axis.name.clone(),
                    found: "another axis of this name".to_owned(),
                    expected: "a name of its own: name = \"...\"".to_owned(),
                });
            }
            let targets = |axis: &Axis| -> Vec<Target> {
                let settings = axis.values.iter().flat_map(|value| &value.settings);
                settings.map(|(of, _)| of.clone()).collect()
            };
            let here = targets(axis);
            let seed = here.iter().any(|of| *of == Target::Set("run.seed".to_owned()));
            let taken = self.axes[..at].iter().flat_map(targets).find(|of| here.contains(of));
            let found = match taken {
                Some(of) => format!("{}, which another axis sets", of.text()),
                None if seed => "set run.seed".to_owned(),
                None => continue,
            };
            let expected = if seed { "over = \"seed\"" } else { "one axis for each key" };
            return Err(SweepError::Axis {
                path: path.to_owned(),
                axis: axis.name.clone(),
                found,
                expected: expected.to_owned(),
            });
        }
        Ok(())
    }

    fn length_of_list(&self, path: &Path) -> Result<u64, SweepError> {
        let first = self.axes.first().map_or(1, |axis| axis.values.len());
        match self.axes.iter().find(|axis| axis.values.len() != first) {
            None => Ok(first as u64),
            Some(axis) => Err(SweepError::Axis {
                path: path.to_owned(),
                axis: axis.name.clone(),
                found: format!("{} values", axis.values.len()),
                expected: format!("{first}, as many as the first axis of the list has"),
            }),
        }
    }

    /// Number of the value on each axis.
    pub fn at(&self, point: u64) -> Vec<usize> {
        if let Some(drawn) = &self.drawn {
            return drawn.iter().map(|axis| axis[point as usize] as usize).collect();
        }
        if self.is_list {
            return vec![point as usize; self.axes.len()];
        }
        let mut rest = point;
        let mut at: Vec<usize> = self
            .axes
            .iter()
            .rev()
            .map(|axis| {
                let length = axis.values.len() as u64;
                let value = rest % length;
                rest /= length;
                value as usize
            })
            .collect();
        at.reverse();
        at
    }

    /// Point of a grid with these values.
    pub fn point(&self, at: &[usize]) -> u64 {
        let axes = self.axes.iter().zip(at);
        axes.fold(0, |point, (axis, value)| point * axis.values.len() as u64 + *value as u64)
    }
}

/// The axis with its draws, and the value of each point.
fn draw(
    of: &AxisOf<'_>,
    method: Method,
    points: usize,
    seed: u64,
) -> Result<(Axis, Vec<u32>), SweepError> {
    // By its number, so that a name can change without another draw.
    let mut rng = Rng::for_part(seed, &format!("sweep axis {}", of.number));
    let strata = (method == Method::LatinHypercube).then(|| permutation(points, &mut rng));
    let axis = of.build(Some(Draws { points, seed, strata: strata.as_deref() }))?;
    let length = axis.values.len() as u64;
    let places = match strata {
        _ if axis.is_drawn => (0..points as u32).collect(),
        Some(strata) => {
            let place = |stratum: &u32| (u64::from(*stratum) * length / points as u64) as u32;
            strata.iter().map(place).collect()
        }
        None => (0..points).map(|_| rng.below(length) as u32).collect(),
    };
    Ok((axis, places))
}

/// Fisher and Yates' shuffle of `0..length`.
fn permutation(length: usize, rng: &mut Rng) -> Vec<u32> {
    let mut all: Vec<u32> = (0..length as u32).collect();
    for last in (1..length).rev() {
        all.swap(last, rng.below(last as u64 + 1) as usize);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(text: &str) -> Result<Space, String> {
        let text = FileText::parse(Path::new("s.toml"), text).unwrap();
        Space::new(Path::new("s.toml"), &text).map_err(|error| error.to_string())
    }

    const TWO: &str =
        "[[axis]]\nset = \"a\"\nvalues = [1, 2]\n[[axis]]\nset = \"b\"\nvalues = [1, 2, 3]\n";

    /// By hand: 2 x 3, the last axis fastest.
    #[test]
    fn grid_has_every_combination_once_and_the_last_axis_fastest() {
        let space = space(TWO).unwrap();
        let all: Vec<_> = (0..space.points).map(|point| space.at(point)).collect();
        let want = [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]];
        assert_eq!(all, want);
        assert!((0..6).all(|point| space.point(&space.at(point)) == point));
    }

    #[test]
    fn list_takes_the_values_at_the_same_place() {
        let three = TWO.replace("[1, 2]", "[7, 8, 9]");
        let list = space(&format!("method = \"list\"\n{three}")).unwrap();
        assert_eq!(
            (0..3).map(|point| list.at(point)).collect::<Vec<_>>(),
            [[0, 0], [1, 1], [2, 2]]
        );
        let error = space(&format!("method = \"list\"\n{TWO}")).err().unwrap();
        assert!(error.contains("axis b: found 3 values, expected 2"), "{error}");
    }

    #[test]
    fn sweep_without_axes_is_one_point() {
        let space = space("about = \"x\"\n").unwrap();
        assert_eq!((space.points, space.at(0)), (1, Vec::new()));
    }

    /// By hand: 12 points over 3 values are 4 of each; a range has one value in each twelfth of 0 to 1200.
    #[test]
    fn latin_hypercube_fills_every_stratum_once() {
        let range = "[[axis]]\nset = \"c\"\nfrom = 0\nto = 1200\n";
        let text = format!("method = \"latin-hypercube\"\npoints = 12\n{TWO}{range}");
        let space = space(&text).unwrap();
        let counts = |axis: usize, length: usize| -> Vec<usize> {
            let value = |value| (0..12).filter(|point| space.at(*point)[axis] == value).count();
            (0..length).map(value).collect()
        };
        assert_eq!((counts(0, 2), counts(1, 3)), (vec![6, 6], vec![4, 4, 4]));
        let mut strata: Vec<u64> =
            space.axes[2].numbers.iter().map(|n| (*n).min(1199) / 100).collect();
        assert_ne!(strata, (0..12).collect::<Vec<_>>(), "shuffled");
        strata.sort_unstable();
        assert_eq!(strata, (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn draws_repeat_by_seed_and_differ_between_seeds() {
        let text = |seed: u64| {
            let range = "[[axis]]\nset = \"c\"\nfrom = 1\nto = 1000000\nscale = \"log\"\n";
            format!("method = \"random\"\npoints = 50\ndraw_seed = {seed}\n{TWO}{range}")
        };
        let of = |seed| {
            let space = space(&text(seed)).unwrap();
            let places: Vec<_> = (0..50).map(|point| space.at(point)).collect();
            (places, space.axes[2].numbers.clone())
        };
        assert_eq!(of(3), of(3));
        assert_ne!(of(3), of(4));
        let (places, numbers) = of(3);
        assert!(numbers.iter().all(|number| (1..=1_000_000).contains(number)));
        // Half of the draws of a logarithmic scale lie below its middle.
        let low = numbers.iter().filter(|number| **number < 1_000).count();
        assert!((15..=35).contains(&low), "{low}");
        assert!((10..=40).contains(&places.iter().filter(|at| at[0] == 0).count()));
    }

    #[test]
    fn number_of_points_is_bounded_and_belongs_to_drawn_sweeps() {
        let error = |text: &str| space(text).err().unwrap();
        assert!(
            error("method = \"random\"\n").contains("points: found nothing, expected the number")
        );
        assert!(error("points = 4\n").contains("points: found 4, expected none"));
        let big = "[[axis]]\nset = \"a\"\nfrom = 1\nto = 1000\nsteps = 1000\n";
        let big = format!("{big}{}", big.replace("\"a\"", "\"b\""));
        assert!(
            error(&big).contains("axis: found 1000 x 1000, expected a product of at most 100000")
        );
        let twice = TWO.replace("\"b\"", "\"a\"");
        assert!(error(&twice).contains("axis a: found another axis of this name"));
    }
}
