//! The answer as data.

use serde::Serialize;

use super::case::Change;
use super::length::Length;
use super::measured::Measured;
use super::resource::Resource;

/// Why a run has its rate and its latency.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    pub file: String,
    pub plan: String,
    pub interface: String,
    pub seed: u64,
    pub length: Length,
    /// Operations arrive at their own times, in some of the jobs at least.
    pub paced: bool,
    /// Number of simulations behind the answer.
    pub simulations: usize,
    /// The run as it is.
    pub measured: Measured,
    pub bound: Bound,
    /// Mean latency by resource, the largest first.
    pub shares: Vec<Share>,
    pub largest: Option<Largest>,
    /// Each resource relaxed alone, the largest gain in rate first.
    pub resources: Vec<Effect>,
    /// Two resources relaxed together: where none bounds the rate alone, or a busy one gains nothing alone.
    pub pairs: Vec<Pair>,
    /// Single keys relaxed alone, the largest gain first.
    pub details: Vec<Effect>,
    /// Levers without any effect: the part of the machine takes no part in the run, or is never short.
    pub no_effect: Vec<String>,
    /// Levers that the machine does not allow.
    pub skipped: Vec<Skipped>,
    /// Each assumed cost at half and at one and a half.
    pub swings: Vec<Swing>,
    /// Smallest and largest rate, and gain of the bound, over all swings.
    pub range: Option<Range>,
    pub notes: Vec<String>,
}

/// The resources that bound the rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// One; two that bound it together; or none, if no lever changes the rate.
    pub resources: Vec<Resource>,
    /// Gain in rate of relaxing it by a factor of two: 0.5 for half as much again.
    pub gain: f64,
    /// Other resources with nearly the same gain.
    pub also: Vec<Resource>,
}

/// A lever and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    pub resource: Resource,
    pub title: String,
    pub change: Change,
    /// Gain in rate: 0.5 for half as much again.
    pub gain: f64,
    pub measured: Measured,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pair {
    pub resources: [Resource; 2],
    pub gain: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Skipped {
    pub title: String,
    pub why: String,
}

/// Part of the mean latency.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// None: stages that belong to no resource.
    pub resource: Option<Resource>,
    pub us: f64,
    /// From 0 to 1.
    pub share: f64,
}

/// The resource with the largest share of the mean latency.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Largest {
    pub resource: Resource,
    pub share: f64,
    pub stage: String,
    pub stage_us: f64,
    pub bounds_the_rate: bool,
    /// Gain in rate if it is relaxed; none: it cannot be.
    pub gain: Option<f64>,
    /// The stage that grows most if it is relaxed, and by how much in microseconds: the wait behind it.
    pub moves_to: Option<(String, f64)>,
    /// The longest stage with the bound relaxed, us.
    pub stage_without_bound_us: Option<f64>,
}

/// An assumed cost at half and at one and a half.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Swing {
    pub key: String,
    pub value: String,
    pub source: String,
    pub half: Answer,
    pub one_and_a_half: Answer,
}

/// The answer with one cost changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    pub rate: f64,
    pub mean_us: f64,
    /// Gain of the bound's lever.
    pub gain: Option<f64>,
    /// The bound; empty if it was not asked for.
    pub bound: Vec<Resource>,
}

/// Smallest and largest answers of the run and its swings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Range {
    pub rate: (f64, f64),
    pub mean_us: (f64, f64),
    pub gain: (f64, f64),
    /// Keys of costs with which another resource bounds the rate.
    pub flips: Vec<String>,
}
