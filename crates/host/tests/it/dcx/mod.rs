//! The DC Express driver over the modelled bus, against a scripted device that can misbehave.

mod collisions;
mod drops;
mod fake;
mod late;
mod packets;
mod quarantine;
mod reports;
mod turns;
mod world;
