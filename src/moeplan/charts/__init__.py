"""One pure function per chart: results -> a Vega-Lite dict; and how a dict becomes HTML, SVG or PNG."""
