//! The driver of descriptor blocks over the modelled bus, against a scripted device that can misbehave.

mod drops;
mod dying;
mod fake;
mod hostile;
mod requests;
mod sizes;
mod world;
