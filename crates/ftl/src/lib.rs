//! The flash translation layer: what makes blocks that may be written anywhere and any number of times
//! out of flash, whose pages are programmed once, in order, until their whole block is erased.
//!
//! It knows pages, through the trait [`Pages`]; it knows neither commands nor what the pages are made of.

mod pages;

pub use pages::{
    Blocks, Erase, Failed, Header, LOST, META, Page, Pages, Part, Place, Row, Seen, Shape, Source,
    Tag, Unit,
};
