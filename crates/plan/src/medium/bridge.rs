//! The table `[medium.bridge]`: several SSD controllers behind a bridge, each with the chips and the FTL of
//! `[medium.flash]`. It is optional: without it the device has one controller and no bridge.

use flash::bridge::{Options, Timing};

use crate::fields::{Fields, Source::Optional};

/// A bridge and the controllers behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeOf {
    pub controllers: u32,
    /// Bytes on one controller before the next one follows.
    pub stripe_bytes: u32,
    /// Maximum number of commands in flight at each controller.
    pub queue: u32,
    /// Longest run of adjacent writes, bytes, that completes in a buffer; `None`: all do.
    pub small_bytes: Option<u32>,
    pub timing: Timing,
}

impl BridgeOf {
    /// The options of the bridge, with its times or without delays.
    pub fn options(&self, modelled: bool) -> Options {
        Options {
            stripe_bytes: self.stripe_bytes,
            queue: self.queue,
            small_bytes: self.small_bytes,
            timing: modelled.then_some(self.timing),
        }
    }
}

/// Parses the table. `block_bytes` is none if the block size is invalid.
pub(super) fn read(fields: Fields<'_>, block_bytes: Option<u64>) -> Option<BridgeOf> {
    let controllers = fields.number("controllers", Optional, 2..=16);
    let block = block_bytes.unwrap_or(512);
    let sized = |bytes: u64| bytes.is_multiple_of(block) && (512..=1 << 24).contains(&bytes);
    let stripe = fields.size("stripe", Optional, sized, "whole blocks, up to \"16 MiB\"");
    let queue = fields.number("queue", Optional, 1..=1024);
    let small = fields.given("small", |key| {
        fields.size(key, Optional, |bytes| bytes < 1 << 24, "less than \"16 MiB\"")
    });
    let conversion = fields.cost("conversion");
    let command = fields.cost("command");
    let rate = fields.rate("link", Optional);
    let frames = fields.boolean_or("frames", false);
    fields.done();
    Some(BridgeOf {
        controllers: controllers? as u32,
        stripe_bytes: stripe? as u32,
        queue: queue? as u32,
        small_bytes: small?.map(|bytes| bytes as u32),
        timing: Timing {
            conversion: conversion?,
            command: command?,
            link_bytes_per_s: rate?,
            frames: frames?,
        },
    })
}
