//! UTC time in the format of C's `ctime`, as in fio's JSON.

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `Sat Nov 21 05:09:15 2026` from seconds since 1970-01-01 00:00 UTC.
pub fn ctime(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let weekday = DAYS[(days % 7) as usize];
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let month = MONTHS[month];
    format!("{weekday} {month} {day:>2} {hour:02}:{minute:02}:{second:02} {year}")
}

/// Year, month from 0 and day from 1 of a day since 1970-01-01, in the Gregorian calendar. Counts
/// from 1 March of year 0, so that a leap day ends its year (Hinnant, "chrono-compatible low-level
/// date algorithms").
fn date(days: u64) -> (u64, usize, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const ERA: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, of_era) = (days / ERA, days % ERA);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march_based = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_based + 2) / 5 + 1;
    let month = (march_based + 2) % 12;
    let year = era * 400 + year + u64::from(month < 2);
    (year, month as usize, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctime_of_known_timestamps() {
        for (unix_s, want) in [
            (0, "Thu Jan  1 00:00:00 1970"),
            (951_782_399, "Mon Feb 28 23:59:59 2000"),
            (951_782_400, "Tue Feb 29 00:00:00 2000"),
            (951_868_800, "Wed Mar  1 00:00:00 2000"),
            (1_795_237_755, "Sat Nov 21 05:09:15 2026"),
            (4_102_444_799, "Thu Dec 31 23:59:59 2099"),
            (4_107_542_400, "Mon Mar  1 00:00:00 2100"),
        ] {
            assert_eq!(ctime(unix_s), want);
        }
    }
}
