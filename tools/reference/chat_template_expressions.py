"""Expressions and small templates that chat_template_fixtures.py asks jinja2 about, and random ones."""

VARIABLES = {
    "n": 7, "zero": 0, "neg": -3, "x": 2.5, "big": 9007199254740993, "t": True, "f": False, "nil": None,
    "s": "Hello, Wörld", "pad": "  two  words \n", "empty": "", "html": "<a href=\"x\">&'</a>",
    "multi": "one\ntwo\r\n\nthree\u2028four", "uni": "ǆ straße ﬁn ΟΔΟΣ İ \U0001d518 e\u0301",
    "control": "\u3000\x1cé\x00\x7f\u200b\x1f\U0001f600\u2003\x85",
    "floats": [1e16, 1e15, 1e22, 1.5e-5, 0.0001, 12.0, -0.0, 123456789.123456789, -2.5],
    "l": [3, 1, 2], "names": ["bob", "Al", "cy", "al"], "nested": [[1, [2, "x"]], {"k": [None, True]}, 1.0],
    "none_list": [], "d": {"b": 1, "a": {"c": [1, 2]}, "items": "mine", "é": 2.0}, "none_dict": {},
    "users": [{"name": "Ann", "age": 30, "tags": ["x", "y"]}, {"name": "bo", "age": 25, "on": True},
              {"name": "Cy", "age": 30, "tags": []}],
}

EXPRESSIONS = r"""
1_0.5_0 + 1.
1 / 0
1 // 0
1 % 0
2.0 ** 10000
9223372036854775807
9223372036854775807 - 1
-9223372036854775807 - 1
n - -n
- - n
-x
not n
not none_list
1 + true
true + true
1 + '1'
'a' * 3 ~ 2 * 'b' ~ '-' * -1
(1, 2) + (3,)
[1] + (2,)
[1] < ['a']
1 < 'a'
none < 1
none == none
none == false
'1' == 1
[1] == (1,)
undefined_name == none
undefined_name == other_name
undefined_name != 1
undefined_name < 1
2 in l
5 not in l
'ell' in s
'' in s
1 in 'abc'
'b' in d
'zz' not in d
1 in undefined_name
undefined_name in l
undefined_name in s
[1] in d
(1, 2) in [(1, 2)]
3 in range(1, 10, 2)
4 in range(1, 10, 2)
1 in n
n and s
n or s
none_list or 'x'
empty and n
zero or none or ''
n if t
n if f
(n if f) is undefined
n if f else 'no'
'a' if f else 'b' if f else 'c'
(1 if t else 2) + 1
undefined_name
undefined_name.attribute
undefined_name['x']
undefined_name()
undefined_name + 1
1 + undefined_name
undefined_name ~ 'x'
-undefined_name
undefined_name | length
undefined_name | list
undefined_name | upper ~ '|' ~ undefined_name | trim ~ '|' ~ undefined_name | string
undefined_name | join
undefined_name | first is undefined
undefined_name | last is undefined
undefined_name | int
undefined_name | float
undefined_name | abs
undefined_name | tojson
undefined_name | default('x')
undefined_name | d
undefined_name | sort
undefined_name | map('upper') | list
undefined_name | items | list
undefined_name | dictsort
undefined_name | indent
undefined_name | round
undefined_name | min is defined
undefined_name | safe | upper
[undefined_name]
[undefined_name] | join('-')
'-'.join([undefined_name])
undefined_name is defined or nil is defined
undefined_name is string or undefined_name is mapping or undefined_name is none
none
None is none
nil.x is defined
nil['x'] is defined
true ~ True ~ false ~ False ~ none ~ None
()
(1,)
(1, 2)
1, 2
[]
{}
d
d.a.c[1]
d['a']['c'][-1]
d.items
d['items']
d.keys() | list
d.values() | list
d.items() | list
d.get('b') ~ d.get('q') ~ d.get('q', 5)
d.get()
d.q is defined
d.q.r
d['q'] is undefined
d[none] is undefined
d[[1]] is undefined
d.b.c is undefined
d.update({'x': 1})
d.update is defined
d.pop('b')
{'a': 1, 'a': 2}
{[1]: 2}
dict(1)
none_dict.x is defined
l[3] is undefined
l['x'] is undefined
l[true]
l[::0]
l['a':]
l.0 ~ l.1
l.append(4)
l.append is defined
l.pop()
l.index(9)
l.foo is undefined
s[8] ~ uni[-3] ~ uni[15:18]
s[99] is undefined
s.foo is undefined
s['upper']()
uni.upper()
uni.lower()
uni | length
'ΑΣ. ΑΣΑ Σ ΑΣ́'.lower()
pad.strip() ~ '|' ~ pad.lstrip() ~ '|' ~ pad.rstrip() ~ '|'
'xxabxx'.strip('x') ~ 'xyabyx'.lstrip('xy') ~ 'abyx'.rstrip('xy') ~ 'é á é'.strip('é ')
s.split() ~ s.split(',') ~ s.split('l', 1) ~ s.split('zz')
pad.split() ~ pad.split(' ') ~ pad.split(none, 1)
''.split() ~ ''.split(',')
s.split('')
s.split(sep='l', maxsplit=1)
s.split(1)
'a,b,,c'.split(',') | length
s.startswith(1)
s.startswith([])
s.index('zz')
s.replace('l')
s.replace(old='l', new='x')
','.join([1])
','.join(5)
'%s %s' % 'a'
'%s' % ('a', 'b')
'%d' % 'a'
'{}'.format()
'{} {0}'.format(1)
'{:d}'.format('a')
'{'.format()
n.foo is undefined
s | length ~ l | length ~ d | count
n | length
'hello-world foo(bar) [baz] <q> it\'s' | title
pad | trim ~ '|' ~ 'xxaxx' | trim('x') ~ '|'
5 | trim ~ none | upper
5 | join
l | first ~ l | last ~ 'abc' | first ~ 'abc' | last ~ d | first ~ d | last
[] | first is undefined
range(3) | last
5 | first
users | sort(attribute='age') | map(attribute='name') | list
[1, 'a'] | sort
[none, 1] | sort
[[1], [1]] | unique | list
l | reverse | list ~ 'abc' | reverse ~ (l | reverse | string)
(5 | reverse)
['a'] | sum
[] | min is undefined
[1, 'a'] | max
names | map('upper') | join(',') ~ l | map('string') | list ~ names | map('replace', 'l', 'L') | list ~ [l, names] | map('join', '-') | list
names | map | list
names | map('nosuch') | list
names | map('upper')
names | map('upper') | length
(names | map('upper'))[0] is undefined
users | selectattr('on') | list | length ~ users | rejectattr('age', 'equalto', 30) | map(attribute='name') | list ~ users | selectattr('tags', 'defined') | list | length
users | selectattr('age', 'gt') | list
l | select('nosuch') | list
users | selectattr | list
d | items | list
l | items | list
l | dictsort
('inf' | float) | int
'a' | round
2.5 | round(1, 'up')
'a' | abs
5 | string ~ none | string ~ [1] | string ~ 'x' | string | length
'abc' | list ~ d | list ~ range(3) | list ~ 5 | string | list
5 | list
nil | default('x') ~ nil | default('x', true) ~ empty | d('y', boolean=true) ~ zero | default(1, true)
5 | indent
'one two' | truncate(1)
d | tojson
nested | tojson
nested | tojson(indent=2)
d | tojson(indent=0)
d | tojson(ensure_ascii=true) ~ uni | tojson(true)
[[], {}, [[]]] | tojson(indent=4)
{(1, 2): 3} | tojson
range(2) | tojson
d.items() | tojson
{'b': 1, 1: 2} | tojson(sort_keys=true)
html | safe | tojson
'x' | nosuch
'x' is nosuch
'a' is odd
s is string ~ n is string ~ n is number ~ t is number ~ x is number ~ t is boolean ~ n is integer ~ t is integer ~ x is float ~ n is float
d is mapping ~ l is mapping ~ l is sequence ~ s is sequence ~ d is sequence ~ n is sequence ~ l is iterable ~ n is iterable ~ range(3) is sequence ~ d.keys() is sequence ~ d.keys() is iterable
nil is none ~ n is none ~ t is true ~ t is false ~ f is false ~ 1 is true
n is defined and n is not none
not n is defined
n is gt
n is defined(1)
range(1, 10, 0)
range(100001)
range('a')
range(1.5)
namespace(a=1).b is undefined
namespace(_a=1)
namespace(a=1)['a']
cycler()
joiner() ~ 1
strftime_now is defined
strftime_now('%Y')
raise_exception('stop')
s.__class__ is defined
s.__class__.x
d.__init__ is defined
s._x is defined
[1, 2, 3,]
{'a': 1,}
(1 ,)
l[0,]
d.get(*['b'])
d.get(**{'key': 'b'})
s.upper(1)
s.upper(x=1)
'a' if 'b' in 'abc' and not 'z' in 'abc' else 'c'
1 if 1 else 2 if 0
((((1))))
[[[[[[1]]]]]]
{'a': {'b': {'c': 1}}}.a.b.c
'a
b'
"it's" ~ 'say "x"'
'\x4'
1 - 1 ~ 1 -1 ~ 1-1
3 - -3
2 * 3 ~ 'x'
'a' ~ 'b' * 2
'a' ~ 1 + 1
1 ~ 2 + 3
not 1 == 2
not true and false
true or false and false
n.
n..a
n +
(1
1)
[1
{1}
{'a'}
'abc
a b
1 2
| upper
n |
n | 5
n is
f(
f(a=1, 2)
f(a=1, a=2)
*l
n = 5
n ; n
n @ n
n $
1 ? 2 : 3
n && t
lambda x: x
[i for i in l]
a.b.c = 1
1 + 2 * 3 - 4
7 % 3 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7 % -3 ~ ' ' ~ -7 % -3
7 % -1 ~ ' ' ~ t % 2 ~ ' ' ~ n * t
x + n ~ ' ' ~ x - big ~ ' ' ~ x * x ~ ' ' ~ n - x ~ ' ' ~ -x
floats
floats | join(' ')
floats | tojson
'a' ~ 1 ~ none ~ true ~ x ~ [1, 'x'] ~ undefined_name
(1 == true) ~ (n == x) ~ (x + x == 5) ~ (big == big + 0)
[1, 2] == [1, 2, 3] or {'a': 1} == {'a': true}
undefined_name is iterable and undefined_name is sequence
[true, none, x, 'q', "it's", 'both "\'', '\n\t\\', control]
{'a': 1, 'b': [1, {'c': (1,)}], 3: 'x'}
{3: 'x', 4: 'y'}[n - 4] ~ {3: 'x'}['3'] ~ (4 in {4: 1}) ~ ('4' in {4: 1}) ~ (4 in d)
{1: 2, 'a': 3} | tojson
l[0] ~ l[-1] ~ l[1:] ~ l[::-1] ~ l[:-1] ~ l[5:] ~ l[-2:2] ~ l[2:1] ~ l[-9:-8] ~ l[:none]
s[0] ~ s[-1] ~ s[7:] ~ s[100:] ~ s[-3:] ~ s[:-3] ~ s[7:9] ~ s[9:7]
s.upper() ~ s.lower() ~ s.upper().lower()
'Straße ŉ ΐ ﬃ ǅ ᾳ ᾼ ẞ'.upper() ~ 'İ ΟΔΟΣ Σ ΑΣ. ẞ ǅ'.lower()
uni | upper ~ uni | lower ~ uni | title
control.strip() | length
s.startswith('Hell') ~ s.startswith('ell') ~ s.startswith('') ~ s.endswith('rld') ~ s.endswith('W')
s.replace('l', 'L') ~ s.replace('l', 'L', 1) ~ s.replace('o', '') ~ s.replace('zz', 'y') ~ s.replace('l', 'll', 0)
'{} {}'.format(1, 'b') ~ '<{}>'.format(none) ~ 'x'.format() ~ '{}{}'.format([1], x)
'{}'.format(1, 2)
'{}{}'.format(1)
l | join(', ') ~ l | join ~ 'abc' | join('-') ~ [1, [2]] | join('|') ~ d | join
l | sort ~ l | sort(reverse=true) ~ names | sort ~ names | sort(true)
users | sort(attribute='name') | map(attribute='name') | list
users | sort(attribute='age', reverse=true) | map(attribute='name') | list
names | unique | list ~ [1, true, 'a', 'A', 2] | unique | list
l | min ~ l | max ~ names | min ~ names | max
users | map(attribute='name') | list ~ users | map(attribute='on') | list
l | select('gt', 1) | list ~ l | reject('eq', 1) | list ~ [0, 1, ''] | select | list ~ l | select('in', [1, 9]) | list
false | map('upper') | list ~ none | select | list ~ 0 | map(attribute='x') | list
d | dictsort ~ {'B': 2, 'a': 1} | dictsort
'42' | int ~ ' 42 ' | int ~ 'x' | int ~ 'x' | int(5) ~ 'items' | int ~ '' | int ~ 'x1' | int(3) ~ 'a b' | int ~ none | int ~ true | int ~ '-7' | int ~ [] | int(5) ~ 7 | int
html | safe ~ (html | safe + html) ~ (html + html | safe) ~ ((html | safe)[1:3] + '<') ~ ((html | safe).strip('<') + '&')
[html | safe] ~ (html | safe | upper + '<') ~ (html | safe | trim + '<') ~ (html | safe ~ '<')
('a b' | safe).split()[0] + '<'
'a\nb\n\nc' | indent ~ '|' ~ 'a\nb\n\nc' | indent(2, true) ~ '|' ~ 'a\n' | indent ~ '|' ~ multi | indent(width=1, first=true)
'abc' | replace('b', 'x') ~ 'abcb' | replace('b', '')
'</script>&\'"\\/\b\f' | tojson ~ control | tojson ~ control | tojson(ensure_ascii=true)
(1, 2) | tojson ~ x | tojson ~ none | tojson ~ true | tojson
n is eq(7) ~ n is equalto(7) ~ n is ne(7) ~ n is gt(3) ~ n is ge(7) ~ n is lt(3) ~ n is le(3)
3 is in(l) ~ n is in(l) ~ n is not in(l) ~ 'a' is in('abc')
range(1, 5) | list ~ range(5, 0, -2) | list ~ range(0) | list ~ range(3)[1] ~ range(10)[2:5] | list ~ range(10)[::-1] | list ~ range(3) | length
namespace(a=1).a
-5 % 3 ~ -(5 % 3) ~ - n
'a' in 'abc' and 'b' not in 'xyz'
'a' + 'b' 'c'
('a' "b" 'c') | upper
['a' 'b', 'c']
""".strip("\n").replace("'a\nb'", "'a\\nb'").split("\n")

TEMPLATES = [
    "{{ n | nosuch if f else 'ok' }}", "{{ (n if f else 2) | nosuch }}", "{{ 1 if (n | nosuch) else 2 if f else 3 }}",
    "{% for i in l %}{{ i }}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }},{% endfor %}{{ loop is defined }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for i in none_list %}x{% else %}none{% endfor %}",
    "{% for i in l if i > 1 %}{{ i }}{{ loop.index }}/{{ loop.length }} {% else %}none{% endfor %}",
    "{% for i in l if i > 5 %}{{ i }}{% else %}none{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 2 %}{% break %}{% endif %}{% endfor %}",
    "{% for i in [1] %}{% continue %}{% else %}E{% endfor %}", "{% for i in [1] %}{% break %}{% else %}E{% endfor %}",
    "{% for i in n %}{% endfor %}", "{% for i in nil %}{% endfor %}",
    "{% for i in undefined_name %}x{% else %}e{% endfor %}", "{% for i in s %}{{ i }}.{% endfor %}",
    "{% for i in range(3) %}{% for j in range(i) %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "{% for i in l %}{% set loop = 1 %}{% endfor %}",
    "{% set loop = 1 %}{{ loop }}{% for i in l %}{{ loop.index }}{% endfor %}",
    "{% set a = 1 %}{% for i in l %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}",
    "{% set ns = namespace(a=1) %}{% for i in l %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
    "{% set d.x = 1 %}", "{% set q.x = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}",
    "{% set a, b = [1] %}", "{% set a %}x{{ n }}y{% endset %}{{ a }}{{ a | length }}",
    "{% set s %}{{ s }}{% endset %}{{ s }}", "{% if t %}{% set s = s ~ '!' %}{% endif %}{{ s }}",
    "{% if f %}{% set s = 1 %}{% endif %}{{ s }}", "{{ s }}{% set s = 1 %}{{ s }}",
    "{% for i in l %}{{ s }}{% endfor %}{% set s = 1 %}",
    "{% for i in l %}{{ q }}{% set q = i %}{{ q }}{% endfor %}{{ q }}",
    "{% for i in l %}{% if loop.first %}{% set q = 'f' %}{% endif %}{{ q }}{% endfor %}",
    "{% set q = 0 %}{% for i in l %}{% if loop.first %}{% set q = 'f' %}{% endif %}{{ q }}{% endfor %}{{ q }}",
    "{% for n in l %}{{ n }}{% endfor %}{{ n }}",
    "{% for i in l %}{% for i in 'ab' %}{{ i }}{% endfor %}{{ i }}{% endfor %}",
    "{% macro m(a, b=2, c=b) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=5, a=4) }} {{ m() }} {{ m(1, c=0) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(5) }}",
    "{{ m(1) }}{% macro m(a) %}{{ a }}{% endmacro %}",
    "{% macro m() %}{{ n }}{{ q }}{% endmacro %}{% set q = 5 %}{{ m() }}",
    "{% set q = 1 %}{% macro m() %}{{ q }}{% endmacro %}{% set q = 2 %}{{ m() }}",
    "{% macro m() %}{% set n = 1 %}{{ n }}{% endmacro %}{{ m() }}{{ n }}",
    "{% if t %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}",
    "{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m('x') | upper }}{{ m('x') ~ 1 }}{{ l | map('string') | map('upper') | list }}",
    "{% set f = s.upper %}{{ f() }}", "{% filter upper %}a{{ s }}{% endfilter %}",
    "{% filter trim | replace('a', 'b') %}  aa  {% endfilter %}", "{% filter nosuch %}x{% endfilter %}",
    "{% if n is nosuch %}x{% endif %}", "{% if f %}{{ n | nosuch }}{% endif %}ok",
    "{% if f %}{% for i in l %}{{ i | nosuch }}{% endfor %}{% endif %}",
    "{% if n %}1{% elif s %}2{% else %}3{% endif %}{% if zero %}1{% elif s %}2{% else %}3{% endif %}{% if zero %}1{% elif empty %}2{% else %}3{% endif %}",
    "{% if f %}{% elif t %}{% set q = 1 %}{% else %}{% set q = 2 %}{% endif %}{{ q }}", "{% if n, s %}x{% endif %}",
    "{%- if t -%}  a  {%- endif -%}  b", "  {% if t %}  a\n  {% endif %}\n  b",
    "  {%+ if t %}\n  a\n  {%+ endif +%}\n  b", "a\n\n{{ n }}\n\nb\n", "a\r\nb\rc\r\n",
    "x {# c #} y\n{# c #}\nz{#- c -#} w", "{# unclosed", "{% raw %}x", "{{ '{{' }}{{ '%}' }}{{ {'a': {'b': 1}}}}",
    "{{ n }", "{{ n", "{% if t %}", "{% if t", "{% endif %}", "{% nosuch %}", "{% %}", "{{ }}", "{{}}", "}}", "%}",
    "#}", "{", "{ {", "{% generation %}a{% endgeneration %}b{% generation %}{{ uni }}{% endgeneration %}",
    "{% for i in l %}{% generation %}{% set n = i %}{{ n }}{% endgeneration %}{{ n }}{% endfor %}",
    "{% generation %}a", "{% for i in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{% break %}",
    "{% for i in l %}{% endfor %}{% continue %}", "{% set a = 1 %}{{ a }}{% set a = none %}{{ a }}",
    "{% set true = 1 %}", "{% set 'a' = 1 %}", "{% set a.b.c = 1 %}", "{% set a[0] = 1 %}", "{% set %}", "{% set a %}",
    "{% set a = %}", "{% for in l %}{% endfor %}", "{% for i l %}{% endfor %}", "{% for i in %}{% endfor %}",
    "{% for ns.a in l %}{% endfor %}", "{% for i in l %}{% endif %}", "{% else %}", "{% macro %}{% endmacro %}",
    "{% macro m %}{% endmacro %}", "{% macro m(1) %}{% endmacro %}",
    "{% for m in users %}{{ m.name }}{% if m.tags %}[{% for t in m.tags %}{{ t }}{{ ',' if not loop.last }}{% endfor %}]{% endif %} {% endfor %}",
    "{% set x = 5 -%}   \n  {{ x }}", "{{- '  a  ' -}}   b", "  {{- n -}}  ", "\n  {%- set a = 1 %}\n{{ a }}",
    "{{ n }}\n{% set a = 1 %}\n{{ a }}\n", "{% if t %}\n  x\n{% endif %}\n", "\t{% if t %}\tx{% endif %}\t",
    "a {% if t %} b {% endif %} c", "a\n   {{ n }}   \nb", "{{+ n }}", "{{ n +}}", "{%- set a = 1 +%}\n{{ a }}",
    "{% set ns = namespace() %}{% set ns.x, ns.y = 1, 2 %}{{ ns.x + ns.y }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m is defined }}{{ m.q is defined }}",
    "{% set g = names | map('upper') %}{{ 'y' if g else 'n' }}{{ g | list }}",
    "{% macro m(a, b='') %}{{ a }}{{ b }};{% endmacro %}{{ m(*[1, 2]) }}{% set ms = [m] %}{{ ms[0](*l[:2]) }}{{ m(1, *[2]) }}",
    "{{ '{{ x }} {% raw %}' }}", "{% for i in l %}{{ s }}{% set s = i %}{{ s }}{% endfor %}{{ s }}",
    "{% macro m() %}{{ s }}{% endmacro %}{{ m() }}{% set s = 1 %}{{ m() }}",
    "{% if f %}{% set s = 1 %}{% endif %}{% for i in l %}{{ s }}{% endfor %}",
    "{% for i in l %}{% for j in l %}{{ loop.last }}{% else %}e{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for c in 'añb' %}{{ c }}{{ loop.revindex0 }}{% endfor %}",
    "{% for k in d %}{{ k }}={{ d[k] }};{% endfor %}{% for k, v in d | items %}{{ loop.length }}{{ k }}{% endfor %}",
]


NAMES = ["a", "b", "c", "n", "s", "m", "loop.index", "ns.x", "loop.last", "ns.y"]


def random_program(r, depth=0, in_loop=False, in_body=False):
    """Statements in statements, which set and print a few names: what is whose variable."""
    out = []
    for _ in range(r.randrange(1, 4)):
        kind = r.randrange(14 if depth < 3 else 5)
        name, other = r.choice(NAMES[:5]), r.choice(NAMES)
        inner = lambda loop=in_loop, body=in_body: random_program(r, depth + 1, loop, body)
        if kind < 2:
            out.append("{{ " + r.choice([name, other]) + " }}.")
        elif kind < 4:
            value = r.choice([other, "1", "'q'", f"{name} ~ {r.choice(NAMES[:5])}", f"({other} or 0)", "none"])
            out.append("{% set " + r.choice([name, name, name, "ns.x", "ns.y"]) + " = " + value + " %}")
        elif kind == 4:
            out.append(r.choice(["{% break %}", "{% continue %}"]) if in_loop and r.random() < 0.3 else "-")
        elif kind < 7:
            end = "{% else %}" + inner() if r.random() < 0.4 else ""
            elif_ = "{% elif " + other + " %}" + inner() if r.random() < 0.3 else ""
            out.append("{% if " + r.choice([name, "not " + name, name + " is defined", other]) + " %}" + inner() + elif_ + end + "{% endif %}")
        elif kind < 10:
            test = " if " + r.choice([name, name + " != 2"]) if r.random() < 0.3 else ""
            end = "{% else %}" + inner() if r.random() < 0.3 else ""
            over = r.choice(["[1, 2]", "range(3)", "'xy'", name, "[]", "[none, 1] | select"])
            out.append("{% for " + name + " in " + over + test + " %}" + inner(True) + end + "{% endfor %}")
        elif kind == 10 and depth == 0:
            args = r.choice(["", "a", "a, b=c", "b=1, c=b", "n"])
            out.append("{% macro m(" + args + ") %}" + inner(False, True) + "{% endmacro %}")
        elif kind == 11:
            out.append("{{ m(" + r.choice(["", "1", name, "b=2", "1, 2"]) + ") if m is defined and ns.d < 3 }}")
        elif kind == 12:
            out.append("{% set " + name + " %}" + inner(in_loop, True) + "{% endset %}")
        else:
            out.append(r.choice([
                "{% filter upper %}" + inner(in_loop, True) + "{% endfilter %}",
                "{% generation %}" + inner(False, True) + "{% endgeneration %}" if not in_body else "g"]))
    program = "".join(out)
    return program if depth else "{% set ns = namespace(x=0, d=0) %}" + program


def random_template(r):
    """A template of expressions over VARIABLES, most of which jinja2 renders."""
    kind = r.randrange(8)
    if kind == 0:
        return r.choice(TEMPLATES) + r.choice(["", " ", "\n"]) + r.choice(TEMPLATES)
    if kind == 1:
        body = "{{ " + expression(r, 2) + " }}{{ i }}{{ loop.index if loop.last else loop.length }}"
        return "{% for i in " + expression(r, 1) + " %}" + body + "{% endfor %}"
    if kind == 2:
        return ("{% set q = " + expression(r, 2) + " %}{% if q %}{{ q }}{% else %}{{ " + expression(r, 2) + " }}{% endif %}" +
                "{{ q | string | length }}")
    return " ".join("{{ " + expression(r, r.randrange(1, 4)) + " }}" for _ in range(r.choice([1, 1, 2])))


ATOMS = [*VARIABLES, "undefined_name", "1", "2", "0", "-1", "'a'", "'l'", "', '", "''", "none", "true", "[1, 2]",
         "['a', 'b']", "{'a': 1}", "(1, 'x')", "range(4)", "users[0]", "d.a", "'{}'", "multi", "uni", "(html | safe)"]
FILTERS = ["upper", "lower", "title", "trim", "length", "list", "first", "last", "join", "string", "int", "min", "max",
           "sort", "unique | list", "tojson", "default('z')", "d('z', true)", "items | list", "dictsort",
           "map('string') | list", "select | list", "reject('none') | list", "map('upper') | list",
           "selectattr('age') | list", "map(attribute='name') | list", "indent", "safe", "replace('l', 'L')",
           "tojson(indent=1)", "sort(reverse=true)", "join('-')", "tojson(ensure_ascii=true)",
           "select('string') | list", "map('length') | list", "rejectattr('name', 'equalto', 'bo') | list"]
METHODS = ["upper()", "lower()", "strip()", "split()", "split('l')", "startswith('H')", "endswith('d')",
           "replace('l', 'x')", "items()", "keys()", "values()", "get('a')", "rstrip('d')", "lstrip('H')", "name", "age",
           "a", "b", "c", "0", "split(' ', 1)", "format(1, 2)", "append(1)", "q", "items", "update"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float",
         "boolean", "true", "false", "eq(1)", "gt(1)", "in(l)", "ne('a')"]
OPERATORS = ["+", "-", "*", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"]


def expression(r, depth):
    if depth == 0:
        return r.choice(ATOMS)
    kind = r.randrange(12)
    inner = expression(r, depth - 1)
    if kind < 3:
        return f"({inner}) | {r.choice(FILTERS)}"
    if kind < 5:
        return f"({inner}).{r.choice(METHODS)}"
    if kind == 5:
        return f"({inner}) is {r.choice(['', 'not '])}{r.choice(TESTS)}"
    if kind == 6:
        return f"({inner})[{expression(r, 0)}]"
    if kind == 7:
        bounds = r.choice(["1:", ":2", "-1:", ":-3", "2:10", ":n", "0:0", "-9:1"])
        inner = r.choice(list(VARIABLES))  # jinja2 slices a literal by other rules, as it compiles.
        return f"({inner})[{bounds}]"
    if kind == 8:
        return f"({inner} if {expression(r, 0)} else {expression(r, depth - 1)})"
    if kind == 9:
        return r.choice([f"[{inner}, {expression(r, 0)}]", f"{{'k': {inner}}}", f"({inner}, 1)", f"not {inner}", f"-{inner}"])
    return f"({inner}) {r.choice(OPERATORS)} ({expression(r, depth - 1)})"
