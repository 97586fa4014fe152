//! Tables of measurements that the program has: the files of the directory `drives`.

use std::path::{Path, PathBuf};

use super::table::{Table, TableError};

macro_rules! tables {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../../drives/", $name, ".tsv")))),+]
    };
}

/// The files of `drives/`, by name.
const TABLES: &[(&str, &str)] = tables![
    "bu-samsung-nvme-1920gb-unnamed",
    "bu-zns-1tb-unnamed",
    "bu-zns-4tb-unnamed",
    "intel-optane-unnamed-vu",
    "intel-p3700-800gb",
    "intel-p4510-1tb",
    "intel-p4800x-375gb",
    "intel-p4800x-375gb-loaded",
    "intel-p5800x",
    "intel-ssdpe2ke064-6400gb",
    "kioxia-cm7-r-3840gb",
    "kioxia-xg6",
    "micron-7300-pro-3840gb",
    "micron-7450-max-800gb",
    "micron-7450-max-800gb-wa",
    "micron-7450-pro-960gb",
    "micron-9100-max-2400gb",
    "samsung-850-evo-250gb",
    "samsung-980-pro-1tb",
    "samsung-pm9a3-960gb",
    "samsung-pm9d3a-fdp",
    "sk-hynix-pe8110-960gb",
    "solidigm-p5520-1920gb",
    "solidigm-p5520-1920gb-wa",
    "wd-dc-960gb-unnamed",
    "wd-zn540-1tb-zns",
];

/// Names of the built-in tables.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|(name, _)| *name)
}

/// The built-in table of this drive, or else the table in this file.
///
/// # Errors
/// The file cannot be read, or is no table.
pub fn open(name_or_path: &str) -> Result<Table, TableError> {
    match TABLES.iter().find(|(name, _)| *name == name_or_path) {
        Some((name, text)) => Table::parse(Path::new(&format!("drives/{name}.tsv")), text),
        None => Table::load(&PathBuf::from(name_or_path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_in_the_directory_is_built_in_and_parses() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../drives");
        let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap().path());
        let tables = entries.filter(|path| path.extension().is_some_and(|end| end == "tsv"));
        let mut found: Vec<_> =
            tables.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        found.sort();
        assert_eq!(found, names().collect::<Vec<_>>());
        for name in names() {
            let table = open(name).unwrap_or_else(|error| panic!("{error}"));
            for key in ["drive", "licence", "source"] {
                assert!(table.fact(key).is_some(), "{name}: {key}");
            }
        }
    }
}
