//! Breadth-first search over the states of a protocol, in every order of its steps. A model mirrors the code,
//! names what it mirrors, and has variants with a rule removed: the search must find an error in each, or it
//! would prove nothing.

use std::collections::BTreeMap;
use std::fmt::Debug;

pub trait Model {
    type State: Clone + Ord + Debug;

    fn start(&self) -> Vec<Self::State>;

    /// Calls `then` with the name of each possible step and the state after it.
    fn steps(&self, state: &Self::State, then: &mut dyn FnMut(&'static str, Self::State));

    /// Describes the error of a state, if there is one. `last`: no step is possible.
    fn wrong(&self, state: &Self::State, last: bool) -> Option<String>;
}

/// Returns the number of states, or the shortest path from a start to an erroneous state.
pub fn search<M: Model>(model: &M) -> Result<usize, String> {
    let mut seen: BTreeMap<M::State, Option<(usize, &'static str)>> = BTreeMap::new();
    let mut order = Vec::new();
    for start in model.start() {
        let mut number = order.len();
        if seen.insert(start.clone(), None).is_none() {
            order.push(start);
        }
        while number < order.len() {
            let state = order[number].clone();
            let mut last = true;
            model.steps(&state, &mut |name, next| {
                last = false;
                if !seen.contains_key(&next) {
                    seen.insert(next.clone(), Some((number, name)));
                    order.push(next);
                }
            });
            if let Some(what) = model.wrong(&state, last) {
                return Err(format!("{what}, after\n{}", way(&seen, &order, &state)));
            }
            number += 1;
        }
    }
    Ok(order.len())
}

/// The steps that lead to a state.
fn way<'a, S: Ord + Debug>(
    seen: &BTreeMap<S, Option<(usize, &'static str)>>,
    order: &'a [S],
    mut at: &'a S,
) -> String {
    let mut way = Vec::new();
    while let Some((before, name)) = seen[at] {
        way.push(format!("{name:<28} {at:?}"));
        at = &order[before];
    }
    way.reverse();
    way.join("\n")
}
