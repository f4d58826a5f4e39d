//! Commands that judge layouts: compare, prove, price.
use super::args::{CompareArgs, PriceArgs, ProveArgs};
use super::watch::Watch;
use super::{any_ids, cases, classify, config, corpus, model, out, show};
use crate::cases::{certify_panel, never_ran};
use crate::compare::{Work, compare};
use crate::number::in_number;
use crate::prove::{self, Subject, Verdict, certify};
use crate::settings::Settings;
use crate::{Config, Error, Layout, Result, dump, names, price};
use tensor::{Key, mix};

/// A key that no run had before.
pub(super) fn fresh_key() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    mix(now.map_or(0, |d| d.as_nanos() as u64) ^ u64::from(std::process::id()))
}

pub(super) fn run_compare(a: CompareArgs, json: bool) -> Result<bool> {
    let model = model(a.model.as_ref())?;
    let seq = model.config.positions.min(64);
    let corpus = match a.data.as_deref() {
        None if !model.tokens.are_known() => any_ids(seq, model.config.shape.vocabulary)?,
        data => corpus(data, seq, &model.tokenizer()?)?,
    };
    let layouts = if a.layout.is_empty() {
        let usual =
            ["tp=2", "tp=2,sp", "dp=2", "tp=2,sp,dp=2"].map(|l| l.parse::<Layout>().expect("a layout"));
        usual.into_iter().filter(|l| l.fits(&model.config.shape).is_ok()).collect::<Vec<_>>()
    } else {
        a.layout
    };
    let layouts = layouts.into_iter().map(|layout| layout.limited(a.memory.limit)).collect();
    let watch = Watch::spinner();
    let work = Work { model: &model, corpus: &corpus, layouts, network: a.network.network(None)? };
    let rows = a.network.keep_trace(
        &work.network,
        in_number!(a.number.name, D => compare::<D>(&work, &|what| watch.say(what))),
    )?;
    watch.done();
    if json {
        rows.iter().for_each(show::json);
    } else {
        show::comparison(&model.origin, a.number.name, &rows);
    }
    Ok(rows.iter().all(|r| {
        let tokens = r.tokens_equal != Some(false) || r.tie.is_some();
        r.equal && tokens && r.error_ratio.is_finite()
    }))
}

pub(super) fn run_prove(a: ProveArgs, json: bool) -> Result<bool> {
    if let Some(number) = a.number {
        return Err(Error::new(format!(
            "--number is {number}; a proof is in numbers of a field, where nothing rounds: leave --number out"
        )));
    }
    if let Some(equal) = cases::asked(&a, json)? {
        return Ok(equal);
    }
    if a.mlp.model.is_some() {
        return classify::run_prove(&a, json);
    }
    let (layout, watch) = (a.layout.unwrap_or_default().limited(a.memory.limit), Watch::spinner());
    let key = Key(a.key.map_or_else(fresh_key, |k| k.0));
    let keys = [key, key.next()];
    let Some(file) = &a.config else {
        let certificate = certify_panel(&layout, &keys, &|name| watch.say(&format!("proving {name}")))?;
        watch.done();
        if json {
            show::json(&certificate);
        } else {
            out::line(&certificate.statement());
        }
        return Ok(certificate.equal);
    };
    let shape = Config::read(file)?.shape;
    layout.fits(&shape)?;
    let subject = Subject::small(shape, &layout)?;
    prove::check(&subject, &layout)?;
    a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
    let verdict = certify(&subject, &layout, &keys, &|what| watch.say(what))?;
    let verdict = Verdict { never_ran: never_ran(&subject, &layout), ..verdict };
    if let Some(dir) = &a.dump {
        prove::dump(&subject, &layout, key, dir, &names::entries(&shape))?;
    }
    watch.done();
    Ok(tell(&verdict, json))
}

/// Shows a verdict: whether all was equal.
pub(super) fn tell(verdict: &Verdict, json: bool) -> bool {
    if json {
        show::json(verdict);
    } else {
        out::line(&verdict.statement());
    }
    verdict.equal
}

pub(super) fn run_price(a: PriceArgs, json: bool) -> Result<bool> {
    let config = config(a.config.as_deref())?;
    let settings: Settings = a.settings();
    let prices = price::price(&config, &settings, &a.layout.limited(a.memory.limit))?;
    if json {
        prices.iter().for_each(show::json);
    } else {
        show::prices(&prices);
    }
    Ok(true)
}
