"""The page's style sheet."""

from __future__ import annotations

from elastic.events.account import PARTS

STYLE = """
:root{--bg:#ffffff;--panel:#f5f7f9;--text:#1b1f24;--soft:#57606a;--rule:#d8dee4;--grid:#e6eaee;--line:#1f6feb;--band:#1f6feb26;
--productive:#2f9e6b;--exchange_wait:#8ecfb0;--data_wait:#c5d86d;--save_stall:#5aa9c9;--redone:#c9344a;--detecting:#ef8636;
--forming:#f2c14e;--transferring:#5b6ee1;--loading:#9a6cc4;--idle:#b9bfc6;--starting:#8b949e;--unknown:#e3e3e3;
--death:#a40e26;--good:#1a7f4b;--bad:#a40e26;--warn:#8a5a00}
@media (prefers-color-scheme:dark){:root{--bg:#101419;--panel:#181d24;--text:#e6e9ee;--soft:#a3adb8;
--rule:#343b44;--grid:#262c34;--line:#6cb0ff;--band:#6cb0ff33;--productive:#35a872;--exchange_wait:#1f6b49;--data_wait:#8a9a3b;--save_stall:#4793b5;
--redone:#e5566b;--detecting:#e88b45;--forming:#d8a93a;--transferring:#7d8df0;--loading:#a883d1;--idle:#59616b;--starting:#78818c;
--unknown:#3a4048;--death:#ff7b8c;--good:#57c98f;--bad:#ff7b8c;--warn:#e0b252}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:22px;line-height:1.25;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:17px;margin:36px 0 10px}
header p{margin:0;color:var(--soft)}
.state{display:inline-block;padding:0 9px;border:1px solid;border-radius:99px;font-weight:600;margin-right:6px}
.state.finished{color:var(--good)}.state.left{color:var(--warn)}.state.unfinished{color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:12px;margin-top:20px}
.tiles div{background:var(--panel);border-radius:8px;padding:12px 14px;display:flex;flex-direction:column}
.tiles strong{font-size:26px;line-height:1.2;font-variant-numeric:tabular-nums}
.tiles .label,.tiles .sub,.note,figcaption{color:var(--soft);font-size:13px}
figure{margin:14px 0 22px}
figcaption{font-weight:600;color:var(--text);margin-bottom:4px}
.note{margin:0 0 6px}
.keys{display:flex;flex-wrap:wrap;gap:2px 14px}
.key{white-space:nowrap}
.key i,th i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.key .k-death{border-radius:50%;background:var(--death);width:9px;height:9px}
.key .k-save{width:2px;background:var(--text)}.key .k-save.failed{background:var(--bad)}
.chart{position:relative;padding-left:64px}
.chart svg{width:100%;height:100%;display:block;overflow:visible}
.chart .y{position:absolute;left:0;top:0;bottom:0;width:56px}
.chart .y span{position:absolute;right:0;transform:translateY(-50%);font-size:12px;line-height:1;color:var(--soft);
white-space:nowrap;font-variant-numeric:tabular-nums}
.x{position:relative;height:18px;margin:4px 0 0 64px;font-size:12px;color:var(--soft);font-variant-numeric:tabular-nums}
.x span{position:absolute;transform:translateX(-50%);white-space:nowrap}
.x .first{transform:none}.x .last{transform:translateX(-100%)}
svg path,svg line{vector-effect:non-scaling-stroke}
.grid{stroke:var(--grid);stroke-width:1}
.line{fill:none;stroke:var(--line);stroke-width:1.6;stroke-linejoin:round}
.area,.band{fill:var(--band)}
.stick{fill:none;stroke:var(--redone);stroke-width:1.4}
.head{fill:none;stroke:var(--redone);stroke-width:7;stroke-linecap:round}
.death{fill:none;stroke:var(--death);stroke-width:8;stroke-linecap:round}
.birth{fill:none;stroke:var(--bg);stroke-width:1.5}
.save{fill:none;stroke:var(--text);stroke-width:1.2}.save.failed{stroke:var(--bad);stroke-width:2}
.hover{fill:transparent}.hover.head{stroke:transparent;stroke-width:14}
.ledger{display:flex;height:26px;border-radius:6px;overflow:hidden;margin:10px 0 14px;gap:1px}
.ledger i{min-width:2px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:5px 12px 5px 0;text-align:left;border-bottom:1px solid var(--rule);vertical-align:top}
thead th{color:var(--soft);font-size:13px;font-weight:600}
tbody th{font-weight:500;white-space:nowrap}
td:nth-child(2),td:nth-child(3),thead th:nth-child(2),thead th:nth-child(3){text-align:right;white-space:nowrap}
td.wide,th.wide{color:var(--soft);padding-left:12px}
.changes td:nth-child(1){white-space:nowrap}
.changes td:nth-child(3),.changes th.text{text-align:left;white-space:normal;overflow-wrap:anywhere;padding-left:6px}
.changes td:nth-child(1),.changes th:nth-child(1){text-align:right}
.losses td:nth-child(1),.losses th:nth-child(1){text-align:right;width:1px}
.losses td.text,.losses th.text{text-align:left}
.losses td:nth-child(2){white-space:normal;overflow-wrap:anywhere}
tr.more td:nth-child(3){color:var(--soft)}
tr.loss td:nth-child(3),tr.broken td:nth-child(3),tr.restart td:nth-child(3){color:var(--bad)}
tr.sum th,tr.sum td{font-weight:600}
.curves{display:grid;grid-template-columns:repeat(2,1fr);gap:0 28px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.failures ul{padding:0;margin:0;list-style:none}
.failures pre{margin:0 0 8px;padding:10px 12px;background:var(--panel);border-left:3px solid var(--bad);
white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.45 ui-monospace,"Liberation Mono",monospace}
.known{color:var(--warn);margin:16px 0 0}
@media (max-width:640px){main{padding:18px 14px 40px}.tiles{grid-template-columns:repeat(2,1fr);gap:8px}
.tiles strong{font-size:21px}.curves{grid-template-columns:1fr}.x .odd{display:none}
.chart{padding-left:46px}.chart .y{width:40px}
.x{margin-left:46px}td.wide,th.wide{display:none}dl{grid-template-columns:1fr}dd{margin-bottom:6px}}
""".replace("\n", "")
"""Light and dark; at a phone's width every second label of an axis is left out."""

STYLE += "".join(f".f-{part}{{fill:var(--{part})}}.k-{part}{{background:var(--{part})}}" for part in PARTS)
