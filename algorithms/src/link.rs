//! Link between two ranks in the α–β model: the cost of a message before its first byte, and of each byte.
//!
//! ```text
//! time of n bytes = α + n·β      α: latency      β = 1/bandwidth
//! ```
//! Source: Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994; Thakur, Rabenseifner,
//! Gropp, "Optimization of collective communication operations in MPICH", §3, 2005.
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tensor::size::{UNITS, read};

/// Nanoseconds per unit; `s` is last because all units end in it.
const TIMES: [(&str, f64); 6] = [("ms", 1e6), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ns", 1.0), ("s", 1e9)];
/// Largest whole number up to which all whole numbers are exact floats.
const EXACT: f64 = (1u64 << 53) as f64;

/// A link between two ranks. Parsed from and displayed as `20us,1GB/s`: latency (`s`, `ms`, `us`, `ns`), then
/// bandwidth in bytes (`B/s`, `kB/s`, `MB/s`, `GB/s`, `TB/s` are powers of 1000, `KiB/s` to `TiB/s` of 1024).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    latency: Duration,
    bandwidth: f64,
}

/// Error of a text or a value that is not a link, as one sentence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{given:?} is not a {what}")]
pub struct LinkError {
    given: String,
    what: &'static str, // the part wanted, and how to write it
}

const PARTS: &str = "link; write its latency and its bandwidth, such as 20us,1GB/s";
const LATENCY: &str =
    "latency; write a number of 0 or more (at most 2^53 ns) and s, ms, us or ns, such as 20us";
const BANDWIDTH: &str = "bandwidth; write a number above 0 and B/s, kB/s, MB/s, GB/s or TB/s, such as 1GB/s";

fn wrong(given: impl Into<String>, what: &'static str) -> LinkError {
    LinkError { given: given.into(), what }
}

impl Link {
    /// Makes a link whose messages take `latency`, and then a second for every `bandwidth` bytes.
    ///
    /// # Errors
    /// If the latency is longer than 2^53 ns (104 days), or the bandwidth is not positive and finite.
    pub fn new(latency: Duration, bandwidth: f64) -> Result<Self, LinkError> {
        if latency.as_nanos() > EXACT as u128 {
            return Err(wrong(format!("{latency:?}"), LATENCY));
        }
        if !(bandwidth.is_finite() && bandwidth > 0.0) {
            return Err(wrong(format!("{bandwidth}B/s"), BANDWIDTH));
        }
        Ok(Self { latency, bandwidth })
    }
    /// Time of a message without bytes.
    pub fn latency(&self) -> Duration {
        self.latency
    }
    /// Bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.bandwidth
    }
    /// Returns the slower of two links: the longer latency and the lower bandwidth.
    #[must_use]
    pub fn slower(self, other: Self) -> Self {
        Self { latency: self.latency.max(other.latency), bandwidth: self.bandwidth.min(other.bandwidth) }
    }
    /// Time of a message of `bytes` bytes, to the nanosecond; at most [`Duration::MAX`].
    pub fn time(&self, bytes: usize) -> Duration {
        self.latency.saturating_add(self.moving(bytes))
    }
    /// Time of the bytes of a message, to the nanosecond, without the latency; at most [`Duration::MAX`].
    pub fn moving(&self, bytes: usize) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.bandwidth).unwrap_or(Duration::MAX)
    }
}

impl FromStr for Link {
    type Err = LinkError;
    fn from_str(text: &str) -> Result<Self, LinkError> {
        let (latency, bandwidth) = match text.split_once(',') {
            Some((latency, bandwidth)) if !bandwidth.contains(',') => (latency.trim(), bandwidth.trim()),
            _ => return Err(wrong(text, PARTS)),
        };
        let nanoseconds = read(latency, &TIMES).filter(|n| (0.0..=EXACT).contains(n));
        let nanoseconds = nanoseconds.ok_or_else(|| wrong(latency, LATENCY))?;
        let rate = bandwidth.strip_suffix("/s").and_then(|bytes| read(bytes, &UNITS));
        let rate = rate.filter(|rate| rate.is_finite() && *rate > 0.0);
        let rate = rate.ok_or_else(|| wrong(bandwidth, BANDWIDTH))?;
        Self::new(Duration::from_nanos(nanoseconds.round() as u64), rate)
    }
}

impl fmt::Display for Link {
    /// Writes the largest units in which nothing is lost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.latency.as_nanos();
        let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
        let (unit, per) = *units.iter().find(|(_, per)| nanoseconds.is_multiple_of(*per)).expect("1 divides");
        write!(f, "{}{unit},", nanoseconds / per)?;
        let exact = |per: f64| self.bandwidth >= per && self.bandwidth / per * per == self.bandwidth;
        let (unit, per) = UNITS[..4].iter().find(|(_, per)| exact(*per)).unwrap_or(&("B", 1.0));
        write!(f, "{}{unit}/s", self.bandwidth / per)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a unit of 1024, bits for bytes, a latency that is forgotten or paid by the byte.
    #[test]
    fn messages_take_their_latency_and_their_bytes() {
        let time = |link: &str, bytes| link.parse::<Link>().unwrap().time(bytes);
        for (link, nanoseconds) in [
            ("20us,1GB/s", 21_000),
            ("0s,1kB/s", 1_000_000_000),
            ("1ms,1MB/s", 2_000_000),
            ("3ns,1TB/s", 4),
            ("1s,1000B/s", 2_000_000_000),
            ("1µs,1000000000B/s", 2_000),
            ("1μs,1GB/s", 2_000),
            ("0.5us , 0.5GB/s", 2_500),
            ("2.007us,1TB/s", 2_008), // 2.007 · 1000 is a little more than 2007,
            ("1.001us,1TB/s", 1_002), // 1.001 · 1000 a little less than 1001
            ("0s,1e9B/s", 1_000),
        ] {
            assert_eq!(time(link, 1000), Duration::from_nanos(nanoseconds), "{link}");
        }
        assert_eq!(time("7us,3GB/s", 0), Duration::from_micros(7));
        assert_eq!(time("0s,1KiB/s", 1024), Duration::from_secs(1));
        assert_eq!(time("0s,1GiB/s", 1 << 30), Duration::from_secs(1));
    }

    /// Kills: a number rounded for the eye, a unit in which something is lost.
    #[test]
    fn what_is_written_reads_back_the_same() {
        let written = |link: &str| link.parse::<Link>().unwrap().to_string();
        for (link, wanted) in [
            ("20us,1GB/s", "20us,1GB/s"),
            ("0.02ms,1000MB/s", "20us,1GB/s"),
            ("1500ns,2.5GB/s", "1500ns,2.5GB/s"),
            ("0us,999B/s", "0s,999B/s"),
            ("60s,1KiB/s", "60s,1.024kB/s"),
        ] {
            assert_eq!(written(link), wanted);
        }
        let bandwidths = [1e-300, 0.1, 1.0, 1023.7, 1e9 / 3.0, 25e9, 4.8e12, 1e300, f64::MAX];
        for nanoseconds in [0, 1, 999, 1_000, 1_234_567, 60_000_000_000, (1 << 53) - 1, 1 << 53] {
            for bandwidth in bandwidths {
                let link = Link::new(Duration::from_nanos(nanoseconds), bandwidth).unwrap();
                assert_eq!(link.to_string().parse(), Ok(link), "{link}");
            }
        }
    }

    /// Kills: a panic where the time is longer than durations are.
    #[test]
    fn times_beyond_durations_are_the_longest() {
        let slow = Link::new(Duration::from_secs(1), 1e-300).unwrap();
        assert_eq!((slow.time(1), slow.time(0)), (Duration::MAX, Duration::from_secs(1)));
        assert_eq!(slow.time(usize::MAX), Duration::MAX);
    }

    /// Kills: infinite, negative and missing numbers, the parts in the other order, bits for bytes.
    #[test]
    fn what_is_no_link_gets_one_sentence() {
        let why = |link: &str| link.parse::<Link>().unwrap_err().to_string();
        for link in ["", "20us", "1GB/s", "20us,1GB/s,2", "20us 1GB/s"] {
            assert!(why(link).starts_with(&format!("{link:?} is not a link; write")), "{}", why(link));
        }
        for latency in ["1GB/s", "", "20", "us", "-1us", "nanus", "infs", "1h", "20 us", "9007199254740994ns"]
        {
            let error = why(&format!("{latency},1GB/s"));
            assert!(error.starts_with(&format!("{latency:?} is not a latency")), "{error}");
        }
        for bandwidth in ["", "20us", "1", "0GB/s", "-1GB/s", "nanB/s", "infB/s", "1e308GB/s", "1Gb/s", "1GB"]
        {
            let error = why(&format!("20us,{bandwidth}"));
            assert!(error.starts_with(&format!("{bandwidth:?} is not a bandwidth")), "{error}");
        }
        for bandwidth in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Link::new(Duration::ZERO, bandwidth).is_err());
        }
        assert!(Link::new(Duration::MAX, 1.0).is_err());
    }
}
