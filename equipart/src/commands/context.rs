//! `context`: draws which context rank has which tokens, and which keys travel when: the hops that run.
use crate::cli::files;
use crate::cli::run::Run;
use crate::terminal::out;
use crate::views::Views;
use clap::Args;
use draw::context::SharedAttention;
use kernels::Mask;
use layers::counted;
use ops::TokenShards;
use parallel::{Layout, Result, bail};
use run::event::RunEvent;
use std::path::PathBuf;

/// The most context ranks that are drawn, and the most tokens.
const MOST_RANKS: usize = 64;
const MOST_TOKENS: usize = 1024;

/// Help on JSON.
const JSON: &str = "With --json: one object. tokens: of each rank, first numbers and ends, counted from document to\ndocument. block: ranks of a member, which exchange heads for tokens if there are several. members: the hops of\neach, with the member that keys are from (null: all), the number of keys that arrive, and the pairs of a query\nand a key that it sees.";

/// Draw attention among context ranks: the tokens of each rank, and the keys that travel, hop by hop
#[derive(Args, Debug)]
#[command(after_help = JSON)]
pub(crate) struct ContextArgs {
    /// A layout of context ranks, with how tokens are dealt to them and how their queries reach keys, such as
    /// cp=4:striped:ulysses/2
    #[arg(long, default_value = "cp=4:zigzag:ring")]
    layout: Layout,
    /// Tokens of the sequence [default: the sum of --documents, or 32]
    #[arg(long, value_name = "TOKENS")]
    seq: Option<usize>,
    /// Lengths of the documents in the sequence, if it is packed; tokens see only their own document
    #[arg(long, value_name = "LENGTHS", value_delimiter = ',')]
    documents: Option<Vec<usize>>,
    /// The keys that a query sees: those up to its own position, or all
    #[arg(long, value_parser = ["causal", "all"], default_value = "causal", conflicts_with = "window")]
    mask: String,
    /// Number of last keys that a query sees, its own among them
    #[arg(long, value_name = "KEYS")]
    window: Option<usize>,
    /// With --window, number of first keys that every query still sees [default: 0]
    #[arg(long, value_name = "KEYS", requires = "window", conflicts_with = "mask")]
    sinks: Option<usize>,
    /// Write the diagram to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl ContextArgs {
    /// Returns the lengths of the documents.
    fn documents(&self, ranks: usize) -> Result<Vec<usize>> {
        let documents = self.documents.clone().unwrap_or_else(|| vec![self.seq.unwrap_or(32)]);
        let sum = documents.iter().fold(0usize, |sum, len| sum.saturating_add(*len));
        if let Some(seq) = self.seq.filter(|seq| *seq != sum) {
            let sum = counted(sum, "token");
            bail!("--documents have {sum} in all, but --seq is {seq}; they must be equal");
        }
        if self.seq == Some(0) {
            bail!("--seq is 0; it must be 1 or more");
        }
        if documents.contains(&0) {
            bail!("--documents has a document of 0 tokens; each must have 1 or more");
        }
        if !(ranks..=MOST_TOKENS).contains(&sum) {
            let sum = counted(sum, "token");
            bail!("the sequence has {sum}; {ranks} context ranks need {ranks} to {MOST_TOKENS}");
        }
        Ok(documents)
    }
    /// Returns the mask and its name.
    fn mask(&self) -> Result<(Mask, String)> {
        Ok(match (self.window, self.sinks.unwrap_or(0)) {
            (None, _) if self.mask == "all" => (Mask::All, "no mask".into()),
            (None, _) => (Mask::Causal, "causal mask".into()),
            (Some(0), _) => bail!("--window is 0; it must be 1 or more, since a query sees its own key"),
            (Some(size), 0) => (Mask::Window { size, sinks: 0 }, format!("window of {size}")),
            (Some(size), sinks) => {
                (Mask::Window { size, sinks }, format!("window of {size}, {}", counted(sinks, "sink")))
            }
        })
    }
    fn drawn(&self) -> Result<SharedAttention> {
        let (layout, ranks) = (&self.layout, self.layout.size(TokenShards::CONTEXT));
        if ranks == 1 || ranks != layout.ranks() || ranks > MOST_RANKS {
            bail!(
                "the layout {layout} must have 2 to {MOST_RANKS} context ranks and no others, such as cp=4"
            );
        }
        let documents = self.documents(ranks)?;
        let (mask, masked) = self.mask()?;
        SharedAttention::of(layout, &documents, (mask, &masked))
    }
}

impl Run for ContextArgs {
    fn run(self, views: &Views) -> Result<bool> {
        let drawn = self.drawn()?;
        files::picture(self.svg.as_ref(), "What each rank sees.", views, || drawn.svg())?;
        views.record(&drawn)?;
        let (colour, width) = out::terminal();
        drawn.lines(width, colour).iter().try_for_each(|line| views.see(&RunEvent::Screen(line)))?;
        if let Some(file) = &self.svg {
            views.say(&format!("the diagram is in {}", file.display()))?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{Arguments, Command};
    use clap::Parser;
    use layers::Choice;
    use parallel::strategies;
    use std::collections::{BTreeMap, BTreeSet};

    fn drawn(flags: &str) -> SharedAttention {
        let all = ["equipart", "context"].into_iter().chain(flags.split_whitespace());
        match Arguments::try_parse_from(all).unwrap().command {
            Some(Command::Context(shown)) => shown.flags.drawn().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Every way to deal tokens, with every way to reach keys.
    fn layouts() -> Vec<String> {
        let of = |choice| {
            strategies::all().iter().filter(move |about| about.choice == choice).map(|about| about.word)
        };
        let cores = || of(Choice::Core).chain(["ulysses/2"]);
        of(Choice::Dealing)
            .flat_map(|dealing| cores().map(move |core| format!("cp=4:{dealing}:{core}")))
            .collect()
    }

    fn ratio(all: &[usize]) -> f64 {
        (all.iter().max().unwrap() * all.len()) as f64 / all.iter().sum::<usize>() as f64
    }

    /// Kills: a hop left out or drawn twice, keys of another hop's rank, documents that see each other, a
    /// count that is not its pairs', tokens on two ranks or on none, a core of the list without a picture.
    #[test]
    fn every_visible_pair_is_computed_once() {
        let (layouts, lengths) = (layouts(), [13, 1, 24]);
        assert_eq!(layouts.len(), 12);
        for (layout, (flags, mask)) in layouts.iter().flat_map(|layout| {
            let windowed = Mask::Window { size: 5, sinks: 2 };
            let masks = [("", Mask::Causal), ("--mask all", Mask::All), ("--window 5 --sinks 2", windowed)];
            masks.map(|mask| (layout, mask))
        }) {
            let drawn = drawn(&format!("--layout {layout} --documents 13,1,24 {flags}"));
            let mut wanted = BTreeSet::new();
            for (at, len) in lengths.iter().enumerate() {
                let first: usize = lengths[..at].iter().sum();
                let all = (0..*len).flat_map(|q| (0..*len).map(move |k| (q, k)));
                wanted.extend(all.filter(|(q, k)| mask.sees(*q, *k)).map(|(q, k)| [first + q, first + k]));
            }
            let rank_of = |token: usize| {
                drawn.tokens.iter().position(|all| all.iter().any(|of| (of[0]..of[1]).contains(&token)))
            };
            let mut seen = BTreeSet::new();
            for (member, hop) in
                drawn.members.iter().enumerate().flat_map(|(m, hops)| hops.iter().map(move |hop| (m, hop)))
            {
                assert_eq!(hop.pairs, hop.seen.len(), "{layout} {flags}");
                let (mut arrived, mut own) = (BTreeSet::new(), BTreeSet::new());
                for [query, key] in &hop.seen {
                    assert!(seen.insert([*query, *key]), "{layout} {flags}: {query} {key} twice");
                    let [query, from] = [*query, *key].map(|token| rank_of(token).unwrap() / drawn.block);
                    assert_eq!(query, member, "{layout} {flags}");
                    assert!(hop.from.is_none_or(|of| of == from), "{layout} {flags}");
                    if from == member {
                        own.insert(key)
                    } else {
                        arrived.insert(key)
                    };
                }
                // gathered keys arrive whether they are seen or not
                let keys = if hop.from.is_none() {
                    38 - drawn.tokens[member].iter().map(|of| of[1] - of[0]).sum::<usize>()
                } else {
                    arrived.len()
                };
                assert_eq!(hop.keys, keys, "{layout} {flags}");
            }
            assert_eq!(seen, wanted, "{layout} {flags}");
            assert_eq!(drawn.totals().iter().sum::<usize>(), wanted.len());
            let mut tokens: Vec<_> = drawn.tokens.iter().flatten().flat_map(|of| of[0]..of[1]).collect();
            tokens.sort_unstable();
            assert_eq!(tokens, (0..38).collect::<Vec<_>>(), "{layout}");
        }
    }

    /// Kills: zigzag tokens that balance no better than contiguous ones, whose last rank has (2N − 1)/N of
    /// the mean; a ratio to another number than the mean; ranks named beside the queries of others.
    #[test]
    fn work_is_as_balanced_as_the_dealing_says() {
        let of = |dealing: &str| drawn(&format!("--layout cp=4:{dealing}:ring --seq 64"));
        assert!(ratio(&of("zigzag").totals()) <= 1.05 && ratio(&of("striped").totals()) <= 1.15);
        let (n, each) = (4.0, 16.0);
        let contiguous = of("contiguous");
        let wanted = ((2.0 * n - 1.0) * each + 1.0) / (n * each + 1.0);
        assert!((ratio(&contiguous.totals()) - wanted).abs() < 1e-12);
        let words = contiguous.lines(100, false).join("\n");
        assert!(words.contains(&format!("most of a rank / mean: x{wanted:.2}")), "{words}");
        let xml = contiguous.svg();
        for rank in 0..4 {
            let named = format!(
                "y=\"{:.1}\" text-anchor=\"end\" fill=\"#1f2328\">rank {rank}<",
                200.0 + 112.0 * f64::from(rank)
            );
            assert!(xml.contains(&named), "beside the middle of its queries: {named}");
        }
        let own = of("zigzag").members.iter().map(|hops| hops[0].pairs).collect::<Vec<_>>();
        assert_eq!(own, [own[0]; 4]);
    }

    /// Kills: keys that no query sees and that travel, a hop without keys that is left out or said to have
    /// some.
    #[test]
    fn hops_without_keys_are_said_to_have_none() {
        let near = drawn("--layout cp=4:contiguous --seq 64 --window 8");
        let keys: Vec<Vec<_>> =
            near.members.iter().map(|hops| hops.iter().map(|hop| hop.keys).collect()).collect();
        assert_eq!(keys, [[0, 0, 0, 0], [0, 7, 0, 0], [0, 7, 0, 0], [0, 7, 0, 0]]);
        for text in [near.lines(100, false).join("\n"), near.svg()] {
            assert_eq!(text.matches("no keys").count(), 2, "{text}");
            assert_eq!(text.matches("7 ← ").count() % 3, 0, "{text}");
        }
        let whole = drawn("--layout cp=4:zigzag:ulysses").lines(100, false).join("\n");
        assert!(whole.contains("each has 1/4 of the heads\nno keys travel after it"), "{whole}");
        assert!(drawn("--layout cp=4:zigzag:gathered").svg().contains("all-gather: 96 keys, 528 pairs"));
    }

    /// Kills: a square or a digit of another hop or pair, two hops of one colour, a bar that
    /// is not as long as its work, lines wider than a terminal.
    #[test]
    fn a_pair_is_a_square_and_a_digit_of_its_hop() {
        let sizes = ["--seq 32", "--seq 64 --window 7", "--documents 20,12 --mask all"];
        for (layout, size) in layouts().iter().flat_map(|layout| sizes.map(|size| (layout, size))) {
            let of = drawn(&format!("--layout {layout} {size}"));
            let (xml, lines) = (of.svg(), of.lines(100, false).join("\n"));
            let side = of.tokens.iter().flatten().map(|of| of[1] - of[0]).sum();
            let queries = xml.matches("<title>query ").count();
            assert_eq!(queries, side * side, "{layout} {size}");
            assert!(lines.lines().all(|line| line.chars().count() <= 100), "{lines}");
            let rows = lines.lines().skip_while(|line| !line.starts_with("queries down")).skip(3).take(side);
            let rows: Vec<Vec<char>> =
                rows.map(|row| row.chars().skip(10).filter(|c| *c != ' ').collect()).collect();
            let mut fills = BTreeMap::<_, BTreeSet<_>>::new();
            let squares: BTreeMap<_, _> = xml
                .lines()
                .filter_map(|line| {
                    let (rect, tip) = line.split_once("<title>query ")?;
                    let (pair, hop) = tip.split_once("</title>")?.0.split_once(": ")?;
                    fills.entry(hop).or_default().insert(rect.split('"').nth(9)?);
                    Some((pair.to_string(), hop))
                })
                .collect();
            assert!(fills.values().all(|fills| fills.len() == 1), "{fills:?}");
            assert_eq!(fills.values().flatten().collect::<BTreeSet<_>>().len(), fills.len(), "{fills:?}");
            let rank =
                |token| of.tokens.iter().position(|all| all.iter().any(|of| (of[0]..of[1]).contains(&token)));
            let hops = || of.members.iter().flat_map(|hops| hops.iter().enumerate());
            for (n, [query, key]) in hops().flat_map(|(n, hop)| hop.seen.iter().map(move |pair| (n, *pair))) {
                let name = match (of.members[0][n].from, n) {
                    (None, _) => "all-gather".into(),
                    (_, 0) => "own keys".into(),
                    _ => format!("hop {n}"),
                };
                let [q, k] = [query, key].map(|token| format!("{token} of rank {}", rank(token).unwrap()));
                assert_eq!(squares[&format!("{q}, key {k}")], name, "{layout} {size}");
                assert_eq!(rows[query][key].to_digit(10), Some(n as u32), "{layout} {size}");
            }
            let seen = hops().map(|(_, hop)| hop.seen.len()).sum::<usize>();
            assert_eq!(rows.iter().flatten().filter(|c| c.is_ascii_digit()).count(), seen, "{lines}");
            let most = *of.totals().iter().max().unwrap() as f64;
            let mut bars =
                xml.lines().filter(|line| line.contains(" height=\"22\"") && line.contains("<title>"));
            for (_, hop) in hops().filter(|(_, hop)| hop.pairs > 0) {
                let width: f64 = bars.next().unwrap().split('"').nth(5).unwrap().parse().unwrap();
                assert!((width - 620.0 * hop.pairs as f64 / most).abs() < 0.01, "{layout} {size}");
            }
            assert_eq!(bars.count(), 0);
        }
    }

    /// Kills: a picture that grows with its sequence or its ranks, squares that hide how many pairs they are,
    /// a list of tokens without an end, members that are cut off.
    #[test]
    fn long_sequences_are_scaled_down() {
        for layout in ["cp=64", "cp=64:striped:ulysses/2", "cp=64:gathered", "cp=3:striped"] {
            let of = drawn(&format!("--layout {layout} --seq 1000"));
            let lines = of.lines(100, false).join("\n");
            assert!(lines.lines().all(|line| line.chars().count() <= 100), "{lines}");
            assert!(
                lines.contains("(*: several); the hop of most pairs of 16 queries and 16 keys"),
                "{lines}"
            );
            let (last, xml) = (of.members.len() - 1, of.svg());
            assert!(
                lines.contains(&of.ranks(last)) && xml.contains(&format!(">{}<", of.ranks(last))),
                "{lines}"
            );
            assert_eq!(xml.matches("<title>query ").count(), 63 * 63, "{layout}");
            assert_eq!(
                lines.contains("tokens: 0-5, 18-23, 36-41, 54-59, 72-77, 90-95, 108-113, 126-131, …"),
                layout == "cp=3:striped",
                "{lines}"
            );
        }
    }
}
