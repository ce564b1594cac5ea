"use strict";
// Draws each figure of the page in the colours of the reader's system, and again when these change.
const config = {
  responsive: true,
  displaylogo: false,
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // among the others is one that sends to a cloud
  plotlyServerURL: "",
};

function draw() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const named = (key, value) => (/color$/.test(key) && /^--/.test(value) ? colour(value) : value);
  const axis = { gridcolor: colour("--rule"), zeroline: false, automargin: true };
  const shared = {
    font: { color: colour("--soft"), family: getComputedStyle(document.body).fontFamily, size: 12 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 12, t: 8, b: 44 },
    hovermode: "closest", hoverlabel: { bgcolor: colour("--panel"), font: { color: colour("--text") }, align: "left" },
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal" },
    xaxis: axis, yaxis: axis,
    modebar: { color: colour("--soft"), activecolor: colour("--text"), bgcolor: "rgba(0,0,0,0)" },
  };
  for (const place of document.querySelectorAll(".plot")) {
    const figure = JSON.parse(place.nextElementSibling.textContent, named);
    const layout = { ...figure.layout, template: { layout: shared } };
    Plotly.react(place, figure.traces, layout, config);
  }
}
draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
