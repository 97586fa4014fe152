//! The table `[medium.bridge]`: several SSD controllers behind a bridge, each with the chips and the software
//! of `[medium.flash]`. A plan may be without it; its device then has one controller, and no bridge.

use device::bridge::{Options, Timing};

use crate::fields::{Fields, Source::Welcome};

/// A bridge, and what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeOf {
    pub controllers: u32,
    /// Bytes that lie on one before the next has its turn.
    pub stripe_bytes: u32,
    /// Commands under way at each: 1, one after the other.
    pub queue: u32,
    /// What passing the bridge takes.
    pub timing: Timing,
}

impl BridgeOf {
    /// The options of the bridge: with its times, or as fast as the data are copied.
    pub fn options(&self, modelled: bool) -> Options {
        Options {
            stripe_bytes: self.stripe_bytes,
            queue: self.queue,
            timing: modelled.then_some(self.timing),
        }
    }
}

/// Reads the table, for blocks of so many bytes.
pub(super) fn read(fields: Fields<'_>, block_bytes: Option<u64>) -> Option<BridgeOf> {
    let controllers = fields.number("controllers", Welcome, 2..=16);
    let block = block_bytes.unwrap_or(512);
    let sized = |bytes: u64| bytes.is_multiple_of(block) && (512..=1 << 24).contains(&bytes);
    let stripe = fields.size("stripe", Welcome, sized, "whole blocks, up to \"16 MiB\"");
    let queue = fields.number("queue", Welcome, 1..=1024);
    let conversion = fields.cost("conversion");
    let command = fields.cost("command");
    let rate = fields.rate("link", Welcome);
    fields.done();
    Some(BridgeOf {
        controllers: controllers? as u32,
        stripe_bytes: stripe? as u32,
        queue: queue? as u32,
        timing: Timing { conversion: conversion?, command: command?, link_bytes_per_s: rate? },
    })
}
