//! `equipart shard`: the shardings it finds, its lines, its proof, and what bad input gets.
use crate::child::{equipart, refused};
use serde_json::Value;

fn said(args: &[&str]) -> Vec<Value> {
    let output = equipart(&[&["shard", "--json"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Steps of a phase, each with its matrix and the elements that a rank gives.
fn steps<'a>(all: &'a [Value], phase: &str) -> Vec<(&'a str, &'a str, u64)> {
    let of = |line: &'a Value| {
        let step = line["step"].as_str()?;
        Some((line["equation"].as_str()?, step, line["elements"].as_u64()?))
    };
    all.iter().filter(|line| line["phase"] == phase).filter_map(of).collect()
}

fn blocks(all: &[Value], name: &str) -> [u64; 2] {
    let line = all.iter().find(|line| line["matrix"] == name).expect("a matrix");
    [0, 1].map(|dim| line["blocks"][dim].as_u64().unwrap())
}

/// One all-reduce, over the pairs of a row of blocks. Kills: a second one, one over
/// another axis or of another size; an equation with other indices; a plan that is not proven.
#[test]
fn stated_shardings_need_one_all_reduce() {
    let all = said(&["Z = (X W) V", "X=[2,1]", "W=[1,2]", "V=[2,1]", "--mesh", "2x2"]);
    assert_eq!((blocks(&all, "(X W)"), blocks(&all, "Z")), ([2, 2], [2, 1]));
    let forward = steps(&all, "forward");
    let [(matrix, step, 2048)] = forward[..] else { panic!("{forward:?}") };
    assert_eq!(matrix, "Z [2,1] of partial sums to [2,1]");
    assert!(["all-reduce over dp", "all-reduce over tp"].contains(&step), "{step}");
    assert_eq!(steps(&all, "backward"), []);
    let equations: Vec<_> = all.iter().filter(|line| line["step"].is_null()).collect();
    assert_eq!(equations[0]["equation"], "(X W)[i,j] = X[i]·W[j]");
    assert_eq!(equations[1]["equation"], "Z[i] = Σj (X W)[i,j]·V[j]");
    assert_eq!(all.last().unwrap()["proven"], true);
}

/// From blocks [2,4] on eight ranks. Kills: another way than the cheapest, a way where none is needed.
#[test]
fn the_steps_from_given_blocks_are_the_cheapest() {
    let sizes = ["--size", "A=256x64", "--size", "B=64x256", "--size", "W=256x256"];
    let of = |w: &str| {
        let stated = ["Y = A B", "Z = Y W", "Y=[2,4]", w, "--mesh", "2x2x2"];
        said(&[&stated[..], &sizes].concat())
    };
    for (w, to, step, elements) in [
        ("W=[1,1]", "Y [2,4] to [8,1]", "all-to-all", 128 * 64),
        ("W=[2,1]", "Y [2,4] to [4,2]", "all-to-all", 128 * 64),
        ("W=[8,1]", "Y [2,4] to [1,8]", "all-to-all", 128 * 64),
    ] {
        let all = of(w);
        let forward = steps(&all, "forward");
        let first = forward.first().unwrap_or_else(|| panic!("{w} needs a step"));
        assert_eq!((first.0, first.2), (to, elements), "{w}: {forward:?}");
        assert!(first.1.starts_with(step), "{w}: {forward:?}");
        assert_eq!(all.last().unwrap()["proven"], true);
    }
    let none = of("W=[4,1]");
    assert!(steps(&none, "forward").iter().all(|(matrix, ..)| matrix.starts_with('Z')), "{none:?}");
}

/// A parameter that two products take: its gradient is summed once, as the step does. Kills: a sum for each
/// of them, in lines or in the price; a matrix of partial sums that looks like a whole one.
#[test]
fn the_gradient_of_a_parameter_is_summed_once() {
    let of = |equation: &str, more: &[&str]| {
        said(&[&[equation, "X=[2,1]", "W=[1,1]", "--mesh", "2", "--seconds", "0"], more].concat())
    };
    let (once, both) = (of("Z = X W W", &[]), of("Z = X W V", &["V=[1,1]"]));
    assert_eq!(
        steps(&once, "gradients"),
        [("dW [1,1] of partial sums to [1,1]", "all-reduce over tp", 4096)]
    );
    assert_eq!(steps(&both, "gradients").len(), 2);
    let price = |all: &[Value]| all.last().unwrap()["price"].as_f64().unwrap();
    assert_eq!(price(&both) - price(&once), 250_000.0 + 50.0 * 4096.0);
    assert_eq!(once.last().unwrap()["proven"], true);
    let all = said(&["Y = A B", "Z = Y C", "A=[1,2]", "B=[2,1]", "C=[1,1]", "--mesh", "2"]);
    let sums = |name: &str| all.iter().find(|line| line["matrix"] == name).unwrap()["partial_sums"].as_u64();
    assert_eq!((sums("Y"), sums("A"), blocks(&all, "Y")), (Some(2), Some(1), [1, 1]));
}

/// A rank has 8x32 numbers of Z as a partial sum, then 8x16, then 16x8; a collective of n ranks sends (n −
/// 1)/n of what a rank gives, a gather n − 1 times that. Kills: a second step with the numbers of the
/// first.
#[test]
fn each_step_of_two_has_its_own_traffic() {
    let sizes = ["--size", "X=16x8", "--size", "W=8x32"];
    let all = said(&[&["Z = X W", "X=[2,2]", "W=[2,1]", "Z=[1,4]"], &sizes[..]].concat());
    let steps = all.iter().filter(|line| line["step"].is_string() && line["phase"] != "gradients");
    let traffic: Vec<_> =
        steps.map(|line| ["elements", "bytes"].map(|key| line[key].as_u64().unwrap())).collect();
    assert_eq!(traffic, [[256, 4 * 256 / 2], [128, 4 * 128 / 2], [128, 4 * 128 * 3], [0, 0]], "{all:?}");
}

/// Kills: a statement that is ignored, for a parameter, a result or the input of a model.
#[test]
fn statements_hold_for_the_matrices_of_a_model() {
    let all = said(&["--model", "mlp", "--hidden", "32,32", "--mesh", "2", "layers.1=[1,2]", "x=[2,1]"]);
    assert_eq!((blocks(&all, "layers.1"), blocks(&all, "x")), ([1, 2], [2, 1]));
    let all = said(&["Y = A B", "Z = Y C", "Y=[1,1]", "Z=[4,1]"]);
    assert_eq!((blocks(&all, "Y"), blocks(&all, "Z")), ([1, 1], [4, 1]));
}

/// Kills: a found split that the trainer does not run, that is not equal, or that sends as much as a layout.
#[test]
fn a_found_split_is_a_row_beside_the_layouts() {
    let output = equipart(&["compare", "--model", "mlp", "--hidden", "64,64", "--seconds", "0", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{rows:?}"));
    let (found, layout) = (row("found split, 2 ranks"), row("tp=2, 2 ranks"));
    assert_eq!((&found["equal"], &found["layout"]), (&Value::Bool(true), &Value::from("tp=2")));
    let sent = |row: &Value| row["traffic_bytes"].as_u64().unwrap();
    assert!(sent(found) < sent(layout), "{} and {}", sent(found), sent(layout));
}

/// Kills: a slow link that is not seen, or is everywhere.
#[test]
fn a_slow_link_between_halves_gives_another_plan() {
    let job = ["--model", "mlp", "--batch-size", "4096", "--hidden", "4096,4096", "--mesh", "2x4"];
    let of = |link: &[&str]| said(&[&job[..], &["--machine", "h100"], link].concat());
    let crossing = |all: &[Value]| {
        let steps = [steps(all, "forward"), steps(all, "backward"), steps(all, "gradients")].concat();
        let crosses = steps.iter().filter(|(_, step, _)| step.contains("dp"));
        crosses.map(|(.., elements)| elements).sum::<u64>()
    };
    let (fast, slow) = (of(&[]), of(&["--slow-link", "1ms,1GB/s"]));
    let [plan_fast, plan_slow] = [&fast, &slow].map(|all| all[..all.len() - 1].to_vec());
    assert!(
        plan_fast != plan_slow && crossing(&slow) < crossing(&fast),
        "{} {}",
        crossing(&fast),
        crossing(&slow)
    );
    let price = |all: &[Value]| all.last().unwrap()["price"].as_f64().unwrap();
    assert!(price(&slow) > price(&fast));
}

/// Kills: a picture without a matrix, or without a rank.
#[test]
fn the_picture_names_the_ranks_of_every_block() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.svg");
    said(&["Z = X W", "X=[2,1]", "W=[1,2]", "--svg", file.to_str().unwrap()]);
    let svg = std::fs::read_to_string(file).unwrap();
    for words in ["X 64x64", "W 64x64", "Z 64x64", ">0,1<", ">0,2<", ">3<"] {
        assert!(svg.contains(words), "{words} in {svg}");
    }
}

#[test]
fn bad_input_gets_one_sentence() {
    let bad = |args: &[&str], says: &str| refused(&[&["shard"], args].concat(), says);
    bad(&[], "give an equation");
    bad(&["Z = X + W"], "\"+\" at character 3 of \"X + W\" is no part of a product");
    bad(&["Z = X W)"], "\")\" at character 4");
    bad(&["Z = (X W"], "a ) is missing at character 5");
    bad(&["Z = X"], "Z = X is no product");
    bad(&["Z = (X)"], "Z = (X) is no product");
    bad(&["Z ="], "a factor is missing");
    bad(&["X W"], "neither an equation");
    bad(&["a b = X W"], "is no name of a matrix");
    bad(&["W = X W"], "W is given by itself");
    bad(&["Z = X W", "Z = W X"], "Z is given twice");
    bad(&["Y = X W", "Z = A B"], "Y is given and never used");
    let says =
        "X=[2,1] and W=[2,1] contradict each other in Z: X has 1 block of columns and W 2 blocks of rows";
    bad(&["Z = X W", "X=[2,1]", "W=[2,1]"], says);
    bad(&["Z = X X", "X=[2,1]"], "X=[2,1] contradicts itself in Z");
    bad(&["Z = X W", "X=[4,1]", "W=[1,4]", "--mesh", "4"], "contradict each other");
    bad(&["Z = X W", "X=[2,1]", "X=[1,2]"], "X has two shardings");
    bad(&["Z = X W", "X=[2,x]"], "is no sharding");
    bad(&["Z = X W", "Q=[2,1]"], "Q is no matrix of the graph; it has X, W, Z");
    bad(&["Z = X W", "X=[3,1]"], "no axes of the mesh 2x2 have as many ranks");
    let sizes = ["--size", "X=6x8", "--size", "W=8x4"];
    bad(&[&["Z = X W", "X=[4,1]", "--mesh", "4"], &sizes[..]].concat(), "4 does not divide the 6 rows of X");
    bad(&["Z = X W", "--size", "X=6x1"], "X has 1 column and W has 64 rows");
    bad(&["Z = X W", "--size", "Q=6x1"], "no equation has a matrix of this name");
    bad(&["Z = X W", "--size", "Q"], "write NAME=ROWSxCOLUMNS");
    bad(&["Z = X W", "--mesh", "2x0"], "write one to three numbers of ranks");
    bad(&["Z = X W", "--mesh", "64x65"], "4096 ranks at most");
    bad(&["Z = X W", "--machine", "nope"], "neither a machine");
    bad(&["Z = X W", "--seconds", "-1"], "--seconds is -1");
    bad(&["Z = X W", "--slow-link", "1ms,1GB/s"], "--machine");
    bad(&["--model", "mlp", "Z = X W"], "--model has equations of its own; leave Z out");
    bad(&["--model", "mlp", "--batch-size", "0"], "--batch-size is 0");
    bad(&["--model", "block", "--hidden", "3"], "--hidden is for --model mlp");
    bad(&["Z = X W", "--hidden", "3"], "--hidden is for --model mlp; a graph of equations has no use for it");
    bad(&["--model", "mlp", "--size", "x=5x5"], "'--size <NAME=ROWSxCOLUMNS>'");
}
