//! The medium from outside, in one program. `contents_file` is another, as it starts processes.

mod common;
mod contents_faults;
mod contents_oracle;
mod contents_sparse;
mod contents_speed;
mod nand;
mod nand_speed;
