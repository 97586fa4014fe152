//! The cases: one file for each part of the specifications.

mod data;
mod entries;
mod events;
mod features;
mod fused;
mod identify;
mod keep_alive;
mod logs;
mod namespaces;
mod nvm;
mod power;
mod protection;
mod queues;
mod ranges;
mod registers;
mod reservations;
mod resets;
mod sanitizes;
mod self_tests;
mod sgls;
mod shadows;

use crate::case::Section;

/// All sections, file by file.
pub(crate) const ALL: &[&[Section]] = &[
    registers::SECTIONS,
    queues::SECTIONS,
    resets::SECTIONS,
    data::SECTIONS,
    sgls::SECTIONS,
    protection::SECTIONS,
    events::SECTIONS,
    identify::SECTIONS,
    logs::SECTIONS,
    features::SECTIONS,
    entries::SECTIONS,
    nvm::SECTIONS,
    ranges::SECTIONS,
    namespaces::SECTIONS,
    fused::SECTIONS,
    shadows::SECTIONS,
    self_tests::SECTIONS,
    sanitizes::SECTIONS,
    power::SECTIONS,
    keep_alive::SECTIONS,
    reservations::SECTIONS,
];
