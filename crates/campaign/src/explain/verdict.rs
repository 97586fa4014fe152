//! The verdict: what bounds the rate, and how the breakdown of the mean fits to it.

use super::findings::{Bound, Effect, Largest, Pair, Share};
use super::measured::Measured;
use super::resource::Resource;

/// A resource whose relaxation gains less than this does not bound the rate.
pub const BOUND_FROM: f64 = 0.05;
/// Gains within this of each other are reported together.
pub(super) const NEARLY: f64 = 0.02;
/// From this utilisation on a part counts as busy all the time.
pub(super) const BUSY_FROM: f64 = 0.95;

/// The resource whose relaxation raises the rate most, or else the two that raise it together. The share of a
/// resource in the mean plays no part: a queue in front of one resource is shown as the wait for another.
pub(super) fn bound(resources: &[Effect], pairs: &[Pair]) -> Bound {
    let best = resources.iter().max_by(|a, b| a.gain.total_cmp(&b.gain));
    let gain = best.map_or(0.0, |best| best.gain);
    let alone = |resource: Resource| {
        let of_it = resources.iter().filter(|effect| effect.resource == resource);
        of_it.map(|effect| effect.gain).fold(0.0, f64::max)
    };
    // The smallest limit in flight counts, so that two limits may give more together than one by one.
    let together = pairs.iter().filter(|pair| match pair.resources {
        [one, other] if one.limits_in_flight() && other.limits_in_flight() => {
            pair.gain > alone(one) + alone(other) + NEARLY
        }
        [one, other] => alone(one) < BOUND_FROM && alone(other) < BOUND_FROM,
    });
    let together = together.max_by(|a, b| a.gain.total_cmp(&b.gain));
    if let Some(pair) = together.filter(|pair| pair.gain >= BOUND_FROM.max(gain + NEARLY)) {
        return Bound { resources: pair.resources.to_vec(), gain: pair.gain, also: Vec::new() };
    }
    let Some(best) = best.filter(|best| best.gain >= BOUND_FROM) else {
        return Bound { resources: Vec::new(), gain: 0.0, also: Vec::new() };
    };
    let near = |other: &&Effect| other.resource != best.resource && best.gain - other.gain < NEARLY;
    let also = resources.iter().filter(near).map(|other| other.resource).collect();
    Bound { resources: vec![best.resource], gain: best.gain, also }
}

/// Mean latency by resource, the largest first.
pub(super) fn shares(measured: &Measured) -> Vec<Share> {
    let mut all: Vec<Share> = Vec::new();
    for stage in &measured.stages {
        let resource = Resource::of_stage(&stage.name);
        match all.iter_mut().find(|share| share.resource == resource) {
            Some(share) => share.us += stage.us,
            None => all.push(Share { resource, us: stage.us, share: 0.0 }),
        }
    }
    for share in &mut all {
        share.share = share.us / measured.mean_us.max(f64::MIN_POSITIVE);
    }
    all.sort_by(|a, b| b.us.total_cmp(&a.us));
    all
}

/// The resource with the largest share of the mean, and what becomes of that share if it is relaxed.
pub(super) fn largest(
    measured: &Measured,
    shares: &[Share],
    resources: &[Effect],
    bound: &Bound,
) -> Option<Largest> {
    let first = shares.iter().find(|share| share.resource.is_some())?;
    let (resource, share) = (first.resource?, first.share);
    let of_it = measured.stages.iter().filter(|s| Resource::of_stage(&s.name) == Some(resource));
    let stage = of_it.max_by(|a, b| a.us.total_cmp(&b.us))?;
    let effect = resources.iter().find(|effect| effect.resource == resource);
    let of_machine = effect.filter(|_| !resource.is_of_load());
    let moves_to = of_machine.and_then(|effect| {
        let grown =
            effect.measured.stages.iter().map(|s| (&s.name, s.us - us_of(measured, &s.name)));
        let most = grown.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (most.1 > 0.05 * first.us).then(|| (most.0.clone(), most.1))
    });
    let relaxed = resources.iter().find(|effect| bound.resources.contains(&effect.resource));
    let stage_without_bound_us = relaxed.map(|effect| us_of(&effect.measured, &stage.name));
    Some(Largest {
        resource,
        share,
        stage_without_bound_us,
        stage: stage.name.clone(),
        stage_us: stage.us,
        bounds_the_rate: bound.resources.contains(&resource) || bound.also.contains(&resource),
        gain: effect.map(|effect| effect.gain),
        moves_to,
    })
}

/// Mean of a stage, us.
fn us_of(measured: &Measured, stage: &str) -> f64 {
    measured.stages.iter().find(|one| one.name == stage).map_or(0.0, |one| one.us)
}

/// Utilisation of a resource, if it is known: the busiest part.
pub fn utilisation(measured: &Measured, resource: Resource) -> Option<f64> {
    let busy = &measured.busy;
    match resource {
        Resource::LinkRate => Some(busy.link_up.max(busy.link_down)),
        Resource::HostCore => busy.cores.iter().copied().max_by(f64::total_cmp),
        Resource::Controller => busy.processors,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(resource: Resource, gain: f64) -> Effect {
        let busy = super::super::measured::Busy {
            link_up: 0.0,
            link_down: 0.0,
            cores: Vec::new(),
            processors: None,
        };
        let measured = Measured {
            operations: 1,
            errors: 0,
            rate: 1.0 + gain,
            bytes_per_s: 0.0,
            mean_us: 1.0,
            p50_us: 1.0,
            p99_us: 1.0,
            stages: Vec::new(),
            busy,
            in_flight: 1.0,
            flash: None,
            of_jobs: Vec::new(),
            elapsed: Vec::new(),
            drift: None,
            messages: Vec::new(),
        };
        Effect { resource, title: String::new(), change: Default::default(), gain, measured }
    }

    #[test]
    fn the_largest_gain_bounds_and_near_ones_are_named() {
        let all = [
            effect(Resource::LinkRate, 0.30),
            effect(Resource::HostCore, 0.31),
            effect(Resource::Medium, 0.2),
        ];
        let bound = bound(&all, &[]);
        assert_eq!((bound.resources, bound.gain), (vec![Resource::HostCore], 0.31));
        assert_eq!(bound.also, [Resource::LinkRate]);
    }

    #[test]
    fn two_resources_bound_together_where_neither_does_alone() {
        let all = [effect(Resource::LinkRate, 0.01), effect(Resource::HostCore, 0.0)];
        let pair = Pair { resources: [Resource::LinkRate, Resource::HostCore], gain: 0.9 };
        assert_eq!(bound(&all, std::slice::from_ref(&pair)).resources, pair.resources);
        assert_eq!(bound(&all, &[]).resources, []);
        // The gain of one alone is not of both.
        let all = [effect(Resource::LinkRate, 0.8), effect(Resource::HostCore, 0.0)];
        assert_eq!(bound(&all, &[pair]).resources, [Resource::LinkRate]);
    }
}
