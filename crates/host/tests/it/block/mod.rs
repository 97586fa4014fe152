//! Descriptor-block driver on the modelled bus, with a scripted device that can misbehave.

mod drops;
mod dying;
mod fake;
mod hostile;
mod requests;
mod sizes;
mod world;
