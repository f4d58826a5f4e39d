//! Attention among context ranks: the tokens of each rank, the keys that travel in each hop, and the pairs of
//! a query and a key that each rank computes; as lines of a terminal, and as a diagram.
mod attended;

use crate::picture::{HATCH, INK, MUTED, Picture, WAITS, ground, shade};
use crate::table::table;
use layers::counted;
use run::records;
use serde::Serialize;

/// Attention to the tokens of a sequence, which are numbered from document to document.
#[derive(Clone, Debug, Serialize)]
pub struct SharedAttention {
    /// Layout, number of tokens and mask.
    pub title: String,
    /// Tokens of each rank: first numbers and ends.
    pub tokens: Vec<Vec<[usize; 2]>>,
    /// Number of consecutive ranks of a member, which exchange heads for tokens if there are several.
    pub block: usize,
    /// Hops of each member, its own keys first; or the only one, if keys are gathered.
    pub members: Vec<Vec<MemberHop>>,
}

/// Keys that arrive at a member, and its work on them.
#[derive(Clone, Debug, Serialize)]
pub struct MemberHop {
    /// Member that the keys are from; none if they are from all.
    pub from: Option<usize>,
    /// Number of keys that arrive.
    pub keys: usize,
    /// Number of pairs of a query and a key that it sees.
    pub pairs: usize,
    /// Token numbers of each pair.
    #[serde(skip)]
    pub seen: Vec<[usize; 2]>,
}

/// Squares of several queries and keys.
struct Squares {
    /// Tokens along a side of a square.
    each: usize,
    /// Ranks of the tokens, square by square; none if a square has several.
    ranks: Vec<Option<usize>>,
    /// Hop of most pairs of each square, by queries and keys.
    hops: Vec<Vec<Option<usize>>>,
}

impl Squares {
    fn caption(&self) -> String {
        let (several, pairs) = match self.each {
            1 => ("", "each pair".into()),
            each => (" (*: several)", format!("most pairs of {each} queries and {each} keys")),
        };
        format!("queries down, keys across, by rank{several}; the hop of {pairs}")
    }
}

/// The most squares along a side of the picture.
const SIDE: usize = 64;
/// Digits of ranks and of hops.
const DIGITS: &[u8; SIDE] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+=";
/// Ranks side by side in a table.
const COLUMNS: usize = 6;
/// The most ranges of a rank's tokens that are listed.
const RANGES: usize = 8;
const LIGHTNESS: f64 = 0.7;
/// Sizes of the diagram, in user units.
const LEFT: f64 = 92.0; // names of ranks
const TOP: f64 = 140.0; // titles
const SQUARES: f64 = 448.0;
const NARROWEST: f64 = 12.0; // squares that the name of a rank fits
const BAR: f64 = 620.0; // the longest bar
const ROW: f64 = 28.0; // a bar
const LINE: f64 = 18.0; // a hop's line of the legend

/// Returns the largest of some numbers as a multiple of their mean: `x1.00`.
fn imbalance(all: &[usize]) -> String {
    let (most, sum) = (all.iter().max().unwrap_or(&0), all.iter().sum::<usize>());
    if sum == 0 { "-".into() } else { format!("x{:.2}", (most * all.len()) as f64 / sum as f64) }
}

records!(SharedAttention: "attention");

impl SharedAttention {
    fn squares(&self) -> Squares {
        let tokens =
            self.tokens.iter().enumerate().flat_map(|(rank, of)| of.iter().map(move |of| (rank, of)));
        let mut ranks = vec![0; self.tokens.iter().flatten().map(|of| of[1]).max().unwrap_or(1)];
        tokens.for_each(|(rank, of)| ranks[of[0]..of[1]].fill(rank));
        let each = ranks.len().div_ceil(SIDE);
        let one = |of: &[usize]| of.iter().all(|rank| *rank == of[0]).then_some(of[0]);
        let ranks: Vec<_> = ranks.chunks(each).map(one).collect();
        let mut pairs = vec![vec![vec![0; self.members[0].len()]; ranks.len()]; ranks.len()];
        for (n, hop) in self.members.iter().flat_map(|hops| hops.iter().enumerate()) {
            hop.seen.iter().for_each(|[query, key]| pairs[query / each][key / each][n] += 1);
        }
        let most = |of: &Vec<usize>| (0..of.len()).rev().max_by_key(|n| of[*n]).filter(|n| of[*n] > 0);
        Squares { each, ranks, hops: pairs.iter().map(|row| row.iter().map(most).collect()).collect() }
    }
    /// Returns a member's ranks: `rank 3`, `ranks 2-3`.
    pub fn ranks(&self, member: usize) -> String {
        let first = member * self.block;
        let last = first + self.block - 1;
        if self.block == 1 { format!("rank {first}") } else { format!("ranks {first}-{last}") }
    }
    fn arrives(&self, hop: &MemberHop) -> String {
        let from = hop.from.map_or("all".into(), |from| self.ranks(from).replace(char::is_alphabetic, ""));
        if hop.keys == 0 { "-".into() } else { format!("{} ← {}", hop.keys, from.trim()) }
    }
    /// Returns the name of a hop, the keys that travel in it, and the pairs of each member.
    fn hop(&self, n: usize) -> (String, usize, Vec<usize>) {
        let hops = || self.members.iter().map(|hops| &hops[n]);
        let keys = hops().map(|hop| hop.keys).sum();
        let name = match (self.members[0][0].from.is_none(), n, keys) {
            (true, ..) => "all-gather".into(),
            (_, 0, _) => "own keys".into(),
            (.., 0) => format!("hop {n}: no keys"),
            _ => format!("hop {n}"),
        };
        (name, keys, hops().map(|hop| hop.pairs).collect())
    }
    /// Returns the pairs of each member in all hops.
    pub fn totals(&self) -> Vec<usize> {
        self.members.iter().map(|hops| hops.iter().map(|hop| hop.pairs).sum()).collect()
    }
    /// Returns two or three lines: what travels, and the sums.
    fn figures(&self) -> Vec<String> {
        let (n, totals) = (self.block, self.totals());
        let keys = (0..self.members[0].len()).map(|n| self.hop(n).1).sum::<usize>();
        let heads =
            format!("an all-to-all among {n} ranks exchanges heads for tokens: each has 1/{n} of the heads");
        let moves = match (self.members[0][0].from, totals.len()) {
            (None, _) => "an all-gather brings the keys of all tokens to every rank".into(),
            (_, 1) => "no keys travel after it: every rank has all tokens".into(),
            _ => format!("queries stay, and keys travel to the ranks whose queries see them: {keys} in all"),
        };
        let (pairs, most) = (totals.iter().sum::<usize>(), imbalance(&totals));
        let sums = format!("{pairs} pairs of a query and a key that it sees; most of a rank / mean: {most}");
        (n > 1).then_some(heads).into_iter().chain([moves, sums]).collect()
    }
    /// Returns lines of at most `width` columns: each rank's tokens, the squares with their hops, and a table
    /// of the hops.
    pub fn lines(&self, width: usize, colour: bool) -> Vec<String> {
        let mut lines = [vec![self.title.clone()], self.figures(), vec![String::new()]].concat();
        for (rank, all) in self.tokens.iter().enumerate() {
            let range = |&[first, end]: &[usize; 2]| {
                if end == first + 1 { first.to_string() } else { format!("{first}-{}", end - 1) }
            };
            let listed = all.iter().take(RANGES).map(range).collect::<Vec<_>>().join(", ");
            let more = if all.len() > RANGES { ", …" } else { "" };
            let number = counted(all.iter().map(|of| of[1] - of[0]).sum(), "token");
            lines.push(format!("{:<10}{number}: {listed}{more}", format!("rank {rank}")));
        }
        let squares = self.squares();
        let Squares { ranks, hops, .. } = &squares;
        let per = if 10 + 2 * ranks.len() > width { 1 } else { 2 };
        let digit = |n: &Option<usize>| format!("{:<per$}", n.map_or('*', |n| char::from(DIGITS[n % SIDE])));
        let keys: String = ranks.iter().map(digit).collect();
        lines.push(format!("\n{}\n\n{:<10}{}", squares.caption(), "", keys.trim_end()));
        for (at, row) in hops.iter().enumerate() {
            let cell = |hop: &Option<usize>| match hop {
                None => format!("{:<per$}", "·"),
                Some(n) if colour => ground(self.hue(*n), LIGHTNESS, &digit(hop)),
                Some(_) => digit(hop),
            };
            let begins = at == 0 || ranks[at] != ranks[at - 1];
            let name = if begins { format!("rank {}", digit(&ranks[at])) } else { String::new() };
            lines.push(format!("{name:<10}{}", row.iter().map(cell).collect::<String>().trim_end()));
        }
        lines.push("\npairs of each rank, below the keys that arrive for them:".into());
        for members in (0..self.members.len()).collect::<Vec<_>>().chunks(COLUMNS) {
            let name = |member: &usize| self.ranks(*member);
            let head =
                [vec!["hop".into()], members.iter().map(name).collect(), vec!["most/mean".into()]].concat();
            let totals = self.totals();
            let row = |(name, of, cell): (String, &[usize], &dyn Fn(usize) -> String)| {
                [vec![name], members.iter().map(|member| cell(*member)).collect(), vec![imbalance(of)]]
                    .concat()
            };
            let hops = (0..self.members[0].len()).map(|n| {
                let (name, keys, pairs) = self.hop(n);
                let keys = |hop: &MemberHop| if keys > 0 { self.arrives(hop) + "\n" } else { String::new() };
                row((name, &pairs, &|member| format!("{}{}", keys(&self.members[member][n]), pairs[member])))
            });
            let sums = [row(("all".into(), &totals, &|member| totals[member].to_string()))];
            let head: Vec<_> = head.iter().map(String::as_str).collect();
            lines.push(format!("\n{}", table(&head, hops.chain(sums))));
        }
        lines
    }
    fn hue(&self, hop: usize) -> f64 {
        (0.6 + hop as f64 / self.members[0].len() as f64) % 1.0
    }
    /// Returns the diagram as the text of an SVG file: the squares in the colours of their hops, and below
    /// them a bar of hops for each member, hatched where another has more work.
    pub fn svg(&self) -> String {
        let squares = self.squares();
        let n = self.members[0].len();
        let Squares { each, ranks, hops } = &squares;
        let size = (SQUARES / ranks.len() as f64).floor().min(28.0);
        let side = size * ranks.len() as f64;
        let bars = TOP + side.max(LINE * n as f64) + 48.0;
        let extent = [LEFT + BAR + 220.0, bars + ROW * self.members.len() as f64 + 12.0];
        let mut picture = Picture::new(extent, &self.title, &self.figures());
        picture.add(HATCH);
        picture.text([LEFT, TOP - 26.0], "start", MUTED, &squares.caption());
        let (mut begin, mut owners) = (0.0, Vec::new());
        for run in ranks.chunk_by(|a, b| a == b) {
            let name = run[0].map_or("*".into(), |rank| rank.to_string());
            let width = size * run.len() as f64;
            if width >= NARROWEST {
                let middle = begin + width / 2.0;
                picture.text([LEFT - 8.0, TOP + middle + 4.0], "end", INK, &format!("rank {name}"));
                picture.text([LEFT + middle, TOP - 8.0], "middle", INK, &name);
            }
            owners.resize(owners.len() + run.len(), name);
            begin += width;
        }
        let fill = |hop: usize| shade(self.hue(hop), LIGHTNESS);
        for (query, row) in hops.iter().enumerate() {
            for (key, hop) in row.iter().enumerate() {
                let place = [LEFT + size * key as f64, TOP + size * query as f64, size - 1.0, size - 1.0];
                let (fill, name) =
                    hop.map_or(("#f3f4f6".into(), "unseen".into()), |n| (fill(n), self.hop(n).0));
                let [q, k] = [query, key].map(|at| format!("{} of rank {}", at * each, owners[at]));
                let tip = format!("<title>query {q}, key {k}: {name}</title>");
                picture.boxed(place, [&fill, "", &tip], "", "");
            }
        }
        for hop in 0..n {
            let (y, (name, keys, pairs)) = (TOP + LINE * hop as f64, self.hop(hop));
            picture.rect([LEFT + side + 24.0, y, 14.0, 14.0], &fill(hop));
            let travel = if keys > 0 { format!("{}, ", counted(keys, "key")) } else { String::new() };
            let work =
                format!("{travel}{}, most/mean {}", counted(pairs.iter().sum(), "pair"), imbalance(&pairs));
            let words = if pairs.iter().all(|n| *n == 0) { name } else { format!("{name}: {work}") };
            picture.text([LEFT + side + 46.0, y + 12.0], "start", INK, &words);
        }
        picture.text([LEFT, bars - 12.0], "start", MUTED, "pairs of each rank, with the keys that arrive");
        let scale = BAR / self.totals().into_iter().max().unwrap_or(0).max(1) as f64;
        for (member, (hops, total)) in self.members.iter().zip(self.totals()).enumerate() {
            let (y, mut x) = (bars + ROW * member as f64, LEFT);
            picture.text([LEFT - 8.0, y + 16.0], "end", INK, &self.ranks(member));
            picture.rect([LEFT, y, BAR, ROW - 6.0], WAITS);
            for (n, hop) in hops.iter().enumerate().filter(|(_, hop)| hop.pairs > 0) {
                let words = if hop.keys == 0 { "own".into() } else { self.arrives(hop) };
                let width = scale * hop.pairs as f64;
                let tip =
                    format!("<title>{}: {words}, {}</title>", self.hop(n).0, counted(hop.pairs, "pair"));
                let shown = if 7.0 * words.chars().count() as f64 <= width { &words } else { "" };
                picture.boxed([x, y, width, ROW - 6.0], [&fill(n), "", &tip], INK, shown);
                x += width;
            }
            picture.text([LEFT + BAR + 10.0, y + 16.0], "start", MUTED, &counted(total, "pair"));
        }
        picture.file()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::tests::texts;

    /// Kills: a tag left open, a pair without its square.
    #[test]
    fn each_pair_is_named_in_the_diagram() {
        let hop = |from, keys, seen: &[[usize; 2]]| MemberHop {
            from: Some(from),
            keys,
            pairs: seen.len(),
            seen: seen.to_vec(),
        };
        let members = vec![
            vec![hop(0, 0, &[[0, 0]]), hop(1, 0, &[])],
            vec![hop(1, 0, &[[1, 1]]), hop(0, 1, &[[1, 0]])],
        ];
        let tokens = vec![vec![[0, 1]], vec![[1, 2]]];
        let xml = SharedAttention { title: "two < three".into(), tokens, block: 1, members }.svg();
        let xml = xml.replace("&lt;", "");
        let texts = texts(&xml);
        assert_eq!(texts.iter().filter(|words| words.starts_with("query ")).count(), 4, "{texts:?}");
    }
}
